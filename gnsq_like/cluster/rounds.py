"""One round: the same request to many daemons at once, with one deadline for all.

A daemon that does not answer costs the round its deadline once. Afterwards it is asked with a short timeout until it
answers again, so that pages do not wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import gevent

from gnsq_like.addresses import shown
from gnsq_like.errors import HTTPRequestFailed, HTTPStatusError, NSQError, UsageError
from gnsq_like.http.client import HTTPClient

logger = logging.getLogger(__name__)

#: Seconds for a daemon that did not answer the last time.
IMPATIENT_SECONDS = 1.0
_MISSING = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")

_C = TypeVar("_C", bound=HTTPClient)
_T = TypeVar("_T")


class NoAnswer(NSQError):
    """No daemon gave a usable answer.

    :ivar kind: "nsqd" or "nsqlookupd": those that were asked
    """

    kind = "nsqd"


class Unreachable(NoAnswer):
    """None of the daemons answers.

    :ivar errors: the error of each address
    """

    def __init__(self, errors: Mapping[str, NSQError], kind: str = "nsqd") -> None:
        super().__init__(errors, kind)
        self.errors = dict(errors)
        self.kind = kind

    def __str__(self) -> str:
        return "; ".join(str(error) for error in self.errors.values()) or f"there is no {self.kind} to ask"


class NotFound(NoAnswer):
    """All daemons that answered say that there is no such topic, channel or node.

    :ivar what: the words for it
    :ivar failures: the errors of those that did not answer
    """

    def __init__(self, what: str, failures: Iterable[NSQError] = (), kind: str = "nsqd") -> None:
        super().__init__(what)
        self.what = what
        self.failures = list(failures)
        self.kind = kind

    def __str__(self) -> str:
        return "; ".join([f"there is no {self.what}", *map(str, self.failures)])


@dataclass
class Round(Generic[_T]):
    """The results of one round."""

    #: By address, in the order in which they were asked.
    answers: dict[str, _T] = field(default_factory=dict)
    failures: dict[str, NSQError] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """The failures as text."""
        return [str(failure) for failure in self.failures.values()]

    def require_any(self, kind: str) -> None:
        """Raise if there is no answer, also if no daemon was asked.

        :param kind: "nsqd" or "nsqlookupd"
        :raises UsageError: an invalid name, option or certificate, so that no daemon was asked
        :raises Unreachable: otherwise
        """
        if self.answers:
            return
        for failure in self.failures.values():
            if isinstance(failure, UsageError):
                raise failure
        raise Unreachable(self.failures, kind)

    def without_missing(self) -> Round[_T]:
        """The same without the refusals of daemons that lack the topic or channel."""
        left = {
            address: failure
            for address, failure in self.failures.items()
            if not (isinstance(failure, HTTPStatusError) and failure.message in _MISSING)
        }
        return Round(self.answers, left)


class Upstreams(Generic[_C]):
    """The clients of one kind of daemons, made at first use and kept.

    :param make: makes the client for an address or URL, with a timeout in seconds
    :param timeout: seconds for a round
    """

    def __init__(self, make: Callable[[str, float], _C], timeout: float) -> None:
        self._make = make
        self.timeout = timeout
        #: The addresses that have credentials, by their names.
        self._secret: dict[str, str] = {}
        #: By address, the URL that it is asked at, and the timeout.
        self._clients: dict[tuple[str, str, float], _C] = {}
        #: Those that did not answer the last time.
        self._silent: set[str] = set()
        #: The https URL of those that refused http.
        self._over_https: dict[str, str] = {}

    def name(self, addresses: Iterable[str]) -> list[str]:
        """The names of daemons: their addresses without credentials, which are kept here for requests.

        Requests are made by name, and answers, labels, pages and logs have the name.
        """
        found = {shown(address): address for address in addresses}
        self._secret |= {name: address for name, address in found.items() if name != address}
        return list(found)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def keep(self, addresses: Iterable[str]) -> None:
        """Forget all other addresses, of nodes that are gone."""
        known = {*addresses}
        for key in list(self._clients):
            if key[0] not in known:
                self._clients.pop(key).close()
        self._silent &= known

    def ask(self, addresses: Iterable[str], question: Callable[[_C], _T], timeout: float | None = None) -> Round[_T]:
        """Ask all at once, by their names. May switch.

        :param question: is called with each one's client, in a greenlet of its own
        :param timeout: seconds for the whole round, instead of the usual
        """
        limit = self.timeout if timeout is None else max(0.05, timeout)
        asked = list(dict.fromkeys(addresses))
        found: Round[_T] = Round()
        greenlets = [gevent.spawn(self._ask_one, address, question, found) for address in asked]
        gevent.joinall(greenlets, timeout=limit)
        # Not by the clock: a hub's timer counts from when its round began, and may end a moment early.
        late = [(address, each) for address, each in zip(asked, greenlets, strict=True) if not each.dead]
        self._silent.update(address for address, _ in late)
        gevent.killall([each for _, each in late], block=False)
        for address, _ in late:
            if address not in found.answers:
                found.failures[address] = HTTPRequestFailed(f"http://{address}", f"no answer within {limit:g} s")
        # In the order in which they were asked; greenlets that were killed may still write into the answers.
        return Round(
            {address: found.answers[address] for address in asked if address in found.answers},
            {address: found.failures[address] for address in asked if address in found.failures},
        )

    def _ask_one(self, address: str, question: Callable[[_C], _T], found: Round[_T]) -> None:
        limit = min(IMPATIENT_SECONDS, self.timeout) if address in self._silent else self.timeout
        start = time.monotonic()
        try:
            found.answers[address] = self._answer(address, question, limit)
        except NSQError as exc:
            found.failures[address] = exc
            if isinstance(exc, HTTPRequestFailed) and time.monotonic() - start >= 0.9 * limit:
                self._silent.add(address)
            return
        except Exception as exc:  # a fault of ours must not look like a daemon that is silent
            logger.exception("asking %s failed", address)
            found.failures[address] = HTTPRequestFailed(f"http://{address}", f"asking failed: {exc!r}")
            return
        self._silent.discard(address)

    def _answer(self, address: str, question: Callable[[_C], _T], limit: float) -> _T:
        """The answer; over https if the daemon refuses http. May switch. Raises NSQError."""
        url = self._over_https.get(address) or self._secret.get(address, address)
        try:
            return self._asked(address, url, question, limit)
        except HTTPStatusError as exc:
            if exc.https_port is None or url.startswith("https://"):
                raise
            host = url.rpartition(":")[0].removeprefix("http://")
            self._over_https[address] = f"https://{host}:{exc.https_port}"
        except HTTPRequestFailed:
            self._over_https.pop(address, None)  # it may answer over http again
            raise
        return self._asked(address, self._over_https[address], question, limit)

    def _asked(self, address: str, url: str, question: Callable[[_C], _T], limit: float) -> _T:
        client = self._clients.get((address, url, limit))
        if client is None:
            client = self._clients[address, url, limit] = self._make(url, limit)
        return question(client)
