"""Polls the nsqlookupds for all nsqds; ``topics`` does so for those that have certain topics.

Each round queries all nsqlookupds concurrently and merges their answers. One that fails is reported and skipped.
Regular rounds are one interval apart, with new random jitter each time, and the second one follows the first at any
time within the interval, so that a fleet of Readers does not poll in step. After a lost connection an extra round
begins at once (:meth:`LookupdPoller.hurry`), and others follow closely while an nsqd is missing, or nothing is found;
the longer that lasts, the less closely. Regular rounds keep their times: if they followed the extra ones, all Readers
that lost connections together would poll together from then on.

Only what a round lists is dialled again. When no nsqlookupd has answered for a while, a round repeats the last answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gevent
from gevent.event import Event

from gnsq_like.addresses import Address, parse_address
from gnsq_like.errors import HTTPError, HTTPRequestFailed, InvalidAddress, NSQError
from gnsq_like.http.nsqlookupd import LookupdClient, NsqdNode
from gnsq_like.options import DiscoveryOptions
from gnsq_like.policy import delays
from gnsq_like.runtime.clock import monotonic
from gnsq_like.runtime.draws import draw
from gnsq_like.runtime.ends import ENDS
from gnsq_like.runtime.timer import LEAST_TIMEOUT

logger = logging.getLogger(__name__)

#: A round that begins so shortly before a regular one replaces it: a part of the interval.
_NEAR = 0.02
#: Seconds without an answer before a round repeats the last one: a restart of nsqlookupd is no outage.
_SILENT = 3.0


class LookupdPoller:
    """Polls nsqlookupds for all nsqds; :meth:`start` begins with a first round.

    :param clients: one per nsqlookupd
    :param options: the interval, its jitter, the ``discovery_filter``, and the ``address_map``
    :param on_found: called with (addresses, complete, began): with the nsqds found so far each time a nsqlookupd has
        answered, so that an unresponsive one delays nothing, and with complete=True at the end of a round with any
        answer; ``began`` is when the round began (by the clock); returns when the last of the nsqds was lost (by the
        clock) that are missing now, or None
    :param on_error: called with (URL or address, error) for each nsqlookupd that failed, and each nsqd with an invalid
        address or on which the ``discovery_filter`` or ``address_map`` failed; for the latter when that begins
    :param draw: returns a random float in [0, 1)
    :param clock: returns the time in seconds, as gevent's timers count it
    """

    def __init__(
        self,
        clients: Sequence[LookupdClient],
        options: DiscoveryOptions,
        on_found: Callable[[list[Address], bool, float], float | None],
        on_error: Callable[[str, NSQError], object],
        *,
        draw: Callable[[], float] = draw,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clients = clients
        self._options = options
        self._on_found = on_found
        self._on_error = on_error
        self._draw = draw
        self._clock = clock
        self._greenlet: Any = None
        self._stopped = False
        self._hurried = Event()
        #: nsqds on which one of the user's functions failed when it was last called, with the function's option.
        self._excluded: set[tuple[str, str]] = set()
        #: The last error of each nsqlookupd that has not answered since, by its URL.
        self.failures: dict[str, NSQError] = {}
        #: When the last round began (by the clock).
        self._began = 0.0
        #: When the next regular round is due; None before the first one.
        self._regular_at: float | None = None
        #: What the last round with an answer listed, and when the last of those was lost that are missing from it.
        self._listed: dict[str, NsqdNode] = {}
        self._lost_at: float | None = None
        #: Since when rounds have found nothing, and since when no nsqlookupd has answered; otherwise None.
        self._fruitless_since: float | None = None
        self._silent_since: float | None = None

    @property
    def all_failed(self) -> bool:
        """Whether no nsqlookupd has answered the last time it was asked."""
        return all(client.url in self.failures for client in self._clients)

    def start(self) -> None:
        """Start the poller greenlet. Never switches."""
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        """End the poller greenlet and close the clients; twice is fine. May switch."""
        self._stopped = True
        if self._greenlet is not None and self._greenlet is not gevent.getcurrent():
            self._greenlet.kill()
        for client in self._clients:
            client.close()

    def forked_child(self) -> None:
        """In a forked child: end the poller without closing the clients, which are the parent's. Never switches."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def hurry(self) -> None:
        """Poll again at once: a connection was lost, and its nsqd may be back, or gone. Never switches."""
        self._hurried.set()

    def _run(self) -> None:
        while not self._stopped:
            # This round covers all losses so far.
            self._hurried.clear()
            try:
                self._round()
            except ENDS:
                raise
            except BaseException:
                # A bug; discovery must go on.
                logger.exception("a round of discovery failed")
            due = self._next_at()
            if self._hurried.wait(max(LEAST_TIMEOUT, due - self._clock())):
                due = min(due, self._began + delays.ROUND_SPACING)
                gevent.sleep(max(LEAST_TIMEOUT, due - self._clock()))

    def _next_at(self) -> float:
        """When the next round is due, if no connection is lost."""
        now, interval, jitter = self._clock(), self._options.lookupd_poll_interval, self._options.lookupd_poll_jitter
        if self._regular_at is None:
            self._regular_at = now + delays.first_poll_delay(interval, jitter, self._draw)
        elif self._regular_at - now <= _NEAR * interval:
            self._regular_at = now + delays.poll_delay(interval, jitter, self._draw)
        due = self._regular_at
        for since in (self._fruitless_since, self._lost_at):
            if since is not None and (closer := delays.search_delay(now - since, interval)) < interval:
                due = min(due, now + delays.poll_delay(closer, jitter, self._draw))
        return due

    def _round(self) -> None:
        self._began = self._clock()
        asked = [gevent.spawn(self._ask, client) for client in self._clients]
        nodes: dict[str, NsqdNode] = {}
        answered = 0
        try:
            for greenlet in gevent.iwait(asked):
                if greenlet.value is not None:
                    answered += 1
                    self._merge(nodes, greenlet.value)
                    self._give(nodes, False)
        finally:
            gevent.killall(asked, block=False)
        self._fruitless_since = (self._fruitless_since or self._began) if self._is_fruitless(nodes) else None
        self._silent_since = None if answered else self._silent_since or self._began
        if self._silent_since is None:
            self._listed = nodes
            self._give(nodes, True, answered == len(asked))
        elif self._clock() - self._silent_since >= _SILENT:
            self._give(self._listed, False)

    def _merge(self, nodes: dict[str, NsqdNode], found: Iterable[NsqdNode]) -> None:
        """Add what a nsqlookupd answered."""
        nodes |= {node.tcp_address: node for node in found}

    def _is_fruitless(self, nodes: dict[str, NsqdNode]) -> bool:
        """Whether a round has found nothing, so that the next one should be soon."""
        return not nodes

    def _give(self, nodes: dict[str, NsqdNode], complete: bool, all_answered: bool = False) -> None:
        """Report what a round has found so far."""
        self._lost_at = self._on_found(self._wanted(nodes), complete, self._began)

    def _wanted(self, nodes: dict[str, NsqdNode]) -> list[Address]:
        # Two may be dialled at the same address; a dict as an ordered set.
        addresses: dict[Address, None] = {}
        for name in sorted(nodes):
            address = self._address(nodes[name])
            if address is not None:
                addresses[address] = None
        return list(addresses)

    def _address(self, node: NsqdNode) -> Address | None:
        """Where to dial this nsqd; None if the ``discovery_filter`` excludes it or a function of the user fails."""
        name = node.tcp_address
        option = "discovery_filter"
        try:
            if self._options.discovery_filter is not None and not self._options.discovery_filter(node):
                return None
            option = "address_map"
            address = parse_address(self._mapped(name))
        except InvalidAddress as exc:
            self._on_error(name, exc)
            return None
        except ENDS:
            raise
        except BaseException as exc:
            if (name, option) not in self._excluded:
                self._excluded.add((name, option))
                logger.warning("%s failed on nsqd %s, which is excluded", option, name, exc_info=exc)
                error = NSQError(f"nsqd at {name} is excluded: {option} raised {exc!r}")
                error.__cause__ = exc
                self._on_error(name, error)
            return None
        self._excluded -= {(name, "discovery_filter"), (name, "address_map")}
        return address

    def _mapped(self, name: str) -> str:
        given = self._options.address_map
        mapped = given(name) if callable(given) else None if given is None else given.get(name)
        return name if mapped is None else mapped

    def _ask(self, client: LookupdClient) -> list[NsqdNode] | None:
        error: HTTPError
        try:
            nodes = self._query(client)
        except HTTPError as exc:
            error = exc
        except ENDS:
            raise
        except BaseException as exc:
            # For instance from the user's function for lookupd_authorization.
            error = HTTPRequestFailed(client.url, f"no request was made: {exc!r}")
            error.__cause__ = exc
        else:
            self.failures.pop(client.url, None)
            return nodes
        self.failures[client.url] = error
        self._on_error(client.url, error)
        return None

    def _query(self, client: LookupdClient) -> list[NsqdNode]:
        """Ask one nsqlookupd; raises HTTPError. May switch."""
        return client.nodes()


def make_poller(
    lookupds: Iterable[str],
    options: DiscoveryOptions,
    on_found: Callable[[list[Address], bool, float], float | None],
    on_error: Callable[[str, NSQError], object],
) -> LookupdPoller:
    """A LookupdPoller with a client for each nsqlookupd; for the other parameters see there."""
    return LookupdPoller(make_clients(lookupds, options), options, on_found, on_error)


def make_clients(lookupds: Iterable[str], options: DiscoveryOptions) -> list[LookupdClient]:
    """A client for each nsqlookupd."""
    return [
        LookupdClient(
            address,
            timeout=options.lookupd_timeout,
            authorization=options.lookupd_authorization,
            verify=options.lookupd_verify,
            cert=options.lookupd_cert,
        )
        for address in lookupds
    ]
