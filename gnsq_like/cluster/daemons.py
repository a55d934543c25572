"""The HTTP APIs of a cluster's daemons, asked in parallel: all nsqds that nsqlookupds know, or a fixed list."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self, TypeVar

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.cluster.figures import read_topics
from gnsq_like.cluster.nodes import Node, from_info, in_order, unite
from gnsq_like.cluster.rounds import NotFound, Round, Upstreams
from gnsq_like.errors import HTTPStatusError, InvalidAddress, NSQError

_C = TypeVar("_C", NsqdHTTPClient, LookupdClient)
_T = TypeVar("_T")

#: Seconds for a round, unless the options have another timeout.
_TIMEOUT = 5.0
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Found:
    """The nsqlookupds' answers about a topic."""

    channels: list[str]
    #: The nsqds that have it; without those tombstoned for it.
    nodes: list[Node]
    #: The nsqlookupds that gave no usable answer.
    failures: dict[str, NSQError] = field(default_factory=dict)


class Daemons:
    """The daemons of a cluster, and how to ask them. Methods that ask may switch; ``timeout`` is for the whole round.

    :param nsqd_http_addresses: of nsqds, with credentials if they need some; kept here without them
    :param lookupd_http_addresses: of nsqlookupds, likewise; if there are any, the nsqds are those that they list
    :param options: keyword arguments of each client; see :class:`gnsq_like.NsqdHTTPClient`
    :param lookupd_options: those of nsqlookupds' clients that differ
    :ivar timeout: seconds that a round may last, unless its caller says otherwise

    Next: ask, and :meth:`close`; or use it in a ``with`` block.
    """

    def __init__(
        self,
        nsqd_http_addresses: Iterable[str] = (),
        lookupd_http_addresses: Iterable[str] = (),
        options: Mapping[str, Any] = _NONE,
        lookupd_options: Mapping[str, Any] = _NONE,
    ) -> None:
        self._nsqds = _upstreams(NsqdHTTPClient, options)
        self._lookupds = _upstreams(LookupdClient, {**options, **lookupd_options})
        self.timeout = self._nsqds.timeout
        self.nsqd_http_addresses = self._nsqds.name(nsqd_http_addresses)
        self.lookupd_http_addresses = self._lookupds.name(lookupd_http_addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections kept for later questions."""
        self._nsqds.close()
        self._lookupds.close()

    def use_lookupds(self, addresses: Iterable[str]) -> None:
        """Ask these nsqlookupds from now on."""
        self.lookupd_http_addresses = self._lookupds.name(addresses)

    def keep(self, nsqds: Iterable[str]) -> None:
        """Close the connections of all other nsqds: nodes come and go."""
        self._nsqds.keep(nsqds)

    def ask_nsqds(
        self, addresses: Iterable[str], question: Callable[[NsqdHTTPClient], _T], timeout: float | None = None
    ) -> Round[_T]:
        """Ask these nsqds at once."""
        return self._nsqds.ask(addresses, question, timeout)

    def ask_lookupds(self, question: Callable[[LookupdClient], _T], timeout: float | None = None) -> Round[_T]:
        """Ask all of its nsqlookupds at once."""
        return self._lookupds.ask(self.lookupd_http_addresses, question, timeout)

    # -- which nsqds there are ------------------------------------------------------------------------

    def nodes(self, timeout: float | None = None) -> Round[Node]:
        """All nsqds, by their HTTP addresses; the failures are of the daemons that were asked for them.

        :raises Unreachable: none of the given daemons answers
        """
        if self.lookupd_http_addresses:
            known = self.ask_lookupds(LookupdClient.nodes, timeout)
            known.require_any("nsqlookupd")
            return Round({node.address: node for node in unite(known.answers)}, known.failures)
        found = self.ask_nsqds(self.nsqd_http_addresses, lambda client: (client.info(), _names(client)), timeout)
        found.require_any("nsqd")
        nodes = [from_info(address, info, topics) for address, (info, topics) in found.answers.items()]
        return Round({node.address: node for node in in_order(nodes)}, found.failures)

    def lookup(self, topic: str, timeout: float | None = None) -> Found:
        """The nsqlookupds' knowledge of a topic.

        :raises NotFound: those that answer do not know it
        :raises Unreachable: none of them answers
        """
        known = self.ask_lookupds(lambda client: client.lookup(topic), timeout)
        others = known.without_missing()
        if not known.answers and len(others.failures) < len(known.failures):
            raise NotFound(f"topic {topic}", others.failures.values(), "nsqlookupd")
        others.require_any("nsqlookupd")
        results = known.answers.values()
        return Found(
            sorted({channel for result in results for channel in result.channels}),
            unite({address: result.producers for address, result in known.answers.items()}),
            others.failures,
        )

    def nodes_of(self, topic: str, timeout: float | None = None) -> Round[Node]:
        """The nsqds that have a topic, by their HTTP addresses.

        :raises NotFound: no daemon knows the topic; an nsqlookupd may know a topic that no nsqd has
        :raises Unreachable: none of the given daemons answers
        """
        if self.lookupd_http_addresses:
            known = self.lookup(topic, timeout)
            return Round({node.address: node for node in known.nodes}, known.failures)
        found = self.ask_nsqds(
            self.nsqd_http_addresses, lambda client: client.info() if topic in _names(client, topic) else None, timeout
        )
        found.require_any("nsqd")
        nodes = [from_info(address, info, [topic]) for address, info in found.answers.items() if info is not None]
        if not nodes:
            raise NotFound(f"topic {topic}", found.failures.values())
        return Round({node.address: node for node in in_order(nodes)}, found.failures)


def _upstreams(kind: type[_C], options: Mapping[str, Any]) -> Upstreams[_C]:
    timeout = float(options.get("timeout", _TIMEOUT))
    return Upstreams(lambda url, seconds: kind(url, **{**options, "timeout": seconds}), timeout)


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
    """One daemon's answer to a ping."""

    kind: str  #: "nsqlookupd" or "nsqd"
    http_address: str
    #: Of its answer to /ping; None if there was none.
    seconds: float | None = None
    version: str = ""
    #: Why it is not healthy; empty if it is.
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
