"""The HTTP APIs of a cluster's daemons: all that these nsqlookupds know, or these nsqds, asked at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.errors import HTTPStatusError, InvalidAddress, NSQError, UsageError
from gnsq_like.http.url import shown
from gnsq_like.tools.figures import read_topics
from gnsq_like.tools.nodes import Node, from_info, unite
from gnsq_like.tools.rounds import Round, Upstreams
from gnsq_like.tools.sources import Unreachable

_C = TypeVar("_C", NsqdHTTPClient, LookupdClient)
_T = TypeVar("_T")

#: Seconds for a round, unless the options have another timeout.
_TIMEOUT = 5.0


class NotFound(NSQError):
    """All daemons that answered say that there is no such topic, channel or node.

    :ivar what: the words for it
    :ivar failures: the errors of those that did not answer
    """

    def __init__(self, what: str, failures: Iterable[NSQError] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.failures = list(failures)

    def __str__(self) -> str:
        return "; ".join([f"there is no {self.what}", *map(str, self.failures)])


@dataclass
class Found:
    """A topic as nsqlookupds know it."""

    channels: list[str]
    #: The nsqds that have it; without those tombstoned for it.
    nodes: list[Node]
    #: The nsqlookupds that gave no usable answer.
    failures: dict[str, NSQError] = field(default_factory=dict)


@dataclass(frozen=True)
class Daemons:
    """Which daemons to ask, and how. Every method that asks may switch.

    :param nsqd_http_addresses: of nsqds, with credentials if they need some; kept here without them
    :param lookupd_http_addresses: of nsqlookupds, likewise
    :ivar options: keyword arguments of each client; see :class:`gnsq_like.NsqdHTTPClient`
    """

    nsqd_http_addresses: tuple[str, ...] = ()
    lookupd_http_addresses: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Each address with its credentials, by the name that is shown.
    _given: Mapping[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        names: dict[str, str] = {}
        for field_name in ("nsqd_http_addresses", "lookupd_http_addresses"):
            given = getattr(self, field_name)
            object.__setattr__(self, field_name, tuple(dict.fromkeys(map(shown, given))))
            names |= {shown(address): address for address in given}
        object.__setattr__(self, "_given", names)

    def ask_nsqds(self, addresses: Iterable[str], question: Callable[[NsqdHTTPClient], _T]) -> Round[_T]:
        """Ask these nsqds at once."""
        return self._ask(NsqdHTTPClient, addresses, question)

    def ask_lookupds(self, question: Callable[[LookupdClient], _T]) -> Round[_T]:
        """Ask all of its nsqlookupds at once."""
        return self._ask(LookupdClient, self.lookupd_http_addresses, question)

    def _ask(self, kind: type[_C], addresses: Iterable[str], question: Callable[[_C], _T]) -> Round[_T]:
        timeout = float(self.options.get("timeout", _TIMEOUT))
        clients = Upstreams(lambda url, seconds: kind(url, **{**self.options, "timeout": seconds}), timeout)
        try:
            found = clients.ask(clients.name(self._given.get(each, each) for each in addresses), question)
        finally:
            clients.close()
        for failure in found.failures.values():
            if isinstance(failure, UsageError):  # an invalid name, address or certificate: nobody was asked
                raise failure
        return found

    # -- which nsqds there are ------------------------------------------------------------------------

    def nodes(self) -> Round[Node]:
        """All nsqds, by their HTTP addresses; the failures are those of what was asked for them.

        :raises Unreachable: none of the given daemons answers
        """
        if not self.lookupd_http_addresses:
            found = self.ask_nsqds(self.nsqd_http_addresses, lambda client: (client.info(), _names(client)))
            require_any(found)
            nodes = {
                address: replace(from_info(address, info, topics), reached_at=address)
                for address, (info, topics) in found.answers.items()
            }
            return Round(nodes, found.failures)
        known = self.ask_lookupds(LookupdClient.nodes)
        require_any(known)
        return Round({node.address: node for node in unite(known.answers)}, known.failures)

    def lookup(self, topic: str) -> Found:
        """What nsqlookupds know of a topic.

        :raises NotFound: those that answer do not know it
        :raises Unreachable: none of them answers
        """
        known = self.ask_lookupds(lambda client: client.lookup(topic))
        others = known.without("TOPIC_NOT_FOUND")
        if not known.answers and len(others.failures) < len(known.failures):
            raise NotFound(f"topic {topic}", others.failures.values())
        require_any(others)
        results = known.answers.values()
        return Found(
            sorted({channel for result in results for channel in result.channels}),
            unite({address: result.producers for address, result in known.answers.items()}),
            others.failures,
        )

    def nodes_of(self, topic: str) -> Round[str]:
        """The HTTP addresses of the nsqds that have a topic.

        :raises NotFound: nobody knows the topic; it may be known where no nsqd has it
        :raises Unreachable: none of the given daemons answers
        """
        if not self.lookupd_http_addresses:
            found = self.ask_nsqds(self.nsqd_http_addresses, lambda client: _names(client, topic) == {topic})
            require_any(found)
            having = [address for address, has_it in found.answers.items() if has_it]
            if not having:
                raise NotFound(f"topic {topic}", found.failures.values())
            return Round({address: address for address in having}, found.failures)
        known = self.lookup(topic)
        addresses = sorted(node.address for node in known.nodes)
        return Round({address: address for address in addresses}, known.failures)


def require_any(found: Round[_T]) -> None:
    """Raise Unreachable if there are failures only."""
    if found.failures and not found.answers:
        raise Unreachable(found.failures)


def _names(client: NsqdHTTPClient, topic: str | None = None) -> set[str]:
    """The topics of an nsqd, or this one if it has it."""
    return {each.topic_name for each in read_topics(client.stats(topic, include_clients=False, include_mem=False))}


def check_node(node: str) -> str:
    """A node's name, if it is "host:port"; raises InvalidAddress."""
    host, _, port = node.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidAddress(node, "a node is the host:port of its HTTP API")
    return node


@dataclass
class Pong:
    """What came of asking one daemon."""

    kind: str  #: "nsqlookupd" or "nsqd"
    http_address: str
    #: Of its answer to /ping; None if there was none.
    seconds: float | None = None
    version: str = ""
    #: Why it is not well; empty if it is.
    problem: str = ""


def ping(daemons: Daemons) -> list[Pong]:
    """Ask the given daemons, and the nsqds that the nsqlookupds know, whether they are well.

    :returns: nsqlookupds first; each daemon once, also if it did not answer
    """
    lookupds = daemons.ask_lookupds(lambda client: (_ping(client), [node.http_address for node in client.nodes()]))
    known = {address for _, nodes in lookupds.answers.values() for address in nodes}
    addresses = list(dict.fromkeys([*daemons.nsqd_http_addresses, *sorted(known)]))
    nsqds = daemons.ask_nsqds(addresses, _ping)
    pinged = Round({address: pong for address, (pong, _) in lookupds.answers.items()}, lookupds.failures)
    return [
        *_pongs("nsqlookupd", daemons.lookupd_http_addresses, pinged),
        *_pongs("nsqd", addresses, nsqds),
    ]


def _ping(client: NsqdHTTPClient | LookupdClient) -> tuple[float, str, str]:
    """Seconds, version and problem. An nsqd that cannot write to its disk answers, and is not well."""
    problem = ""
    start = time.monotonic()
    try:
        client.ping()
    except HTTPStatusError as exc:
        if exc.https_port is not None:
            raise  # it is asked again over https
        problem = exc.message or str(exc)
    seconds = time.monotonic() - start
    info = client.info()
    return seconds, str(info.get("version", "")) if isinstance(info, dict) else info.version, problem


def _pongs(kind: str, addresses: Iterable[str], answers: Round[tuple[float, str, str]]) -> list[Pong]:
    found = []
    for address in dict.fromkeys(addresses):
        if address in answers.answers:
            found.append(Pong(kind, address, *answers.answers[address]))
        else:
            found.append(Pong(kind, address, problem=_text(answers.failures[address])))
    return found


def _text(error: NSQError) -> str:
    return " ".join(str(error).split())
