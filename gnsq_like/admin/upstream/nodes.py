"""The nsqds of a cluster: those that nsqlookupds know, united, or those that were given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gnsq_like.addresses import join_host_port
from gnsq_like.http.nsqd import NsqdInfo
from gnsq_like.http.nsqlookupd import NsqdNode
from gnsq_like.tools.figures import TopicFigures, of_node

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?(\+.*)?")
#: Seconds for which one that left is kept.
KEPT = 24 * 3600.0
#: Seconds after which an nsqd that answers, and is not listed, is a problem. It registers again with a nsqlookupd that
#: was restarted at its next ping, of which there is one every 15 s.
REGISTERS_WITHIN = 30.0


@dataclass(slots=True)
class Node:
    """An nsqd."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str = ""
    #: "<nsqlookupd>/<ip:port from which it is connected>" for each nsqlookupd that knows it.
    remote_addresses: list[str] = field(default_factory=list)
    remote_address: str = ""
    #: Its topics, and whether each is tombstoned.
    topics: dict[str, bool] = field(default_factory=dict)
    is_out_of_date: bool = False
    topology_zone: str = ""
    topology_region: str = ""

    @property
    def address(self) -> str:
        """Where its HTTP API is; also its name in the admin's API and pages."""
        return join_host_port(_bare(self.broadcast_address), self.http_port)

    @property
    def tcp_address(self) -> str:
        """Where Readers and Producers connect."""
        return join_host_port(_bare(self.broadcast_address), self.tcp_port)

    @property
    def place(self) -> str:
        """Its region and zone, for people; empty if it has none."""
        return place_of(self.topology_region, self.topology_zone)

    @property
    def of_client(self) -> dict[str, str]:
        """What a client's record says of its node."""
        zone, region = self.topology_zone, self.topology_region
        return {"node": self.address, "node_topology_region": region, "node_topology_zone": zone}

    def own(self, topics: Iterable[TopicFigures]) -> Iterator[TopicFigures]:
        """The topics as those of this node."""
        return of_node(topics, self.address, self.hostname, self.of_client)

    def as_json(self) -> dict[str, object]:
        """As in nsqadmin's /api/nodes; an empty list is null there, and an empty zone is left out."""
        topology = {"topology_zone": self.topology_zone, "topology_region": self.topology_region}
        return {
            "remote_addresses": self.remote_addresses or None,
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            **{name: place for name, place in topology.items() if place},
            "topics": [{"topic": name, "tombstoned": self.topics[name]} for name in sorted(self.topics)] or None,
            "out_of_date": self.is_out_of_date,
        }


def place_of(region: str, zone: str) -> str:
    """A region and a zone, for people."""
    return " / ".join(filter(None, (region, zone)))


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def from_lookupd(node: NsqdNode) -> Node:
    """A node as a nsqlookupd describes it."""
    tombstones = (*node.tombstones, *[False] * len(node.topics))
    return Node(
        node.hostname,
        node.broadcast_address,
        node.tcp_port,
        node.http_port,
        node.version,
        remote_address=node.remote_address,
        topics=dict(zip(node.topics, tombstones, strict=False)),
        topology_zone=node.topology_zone,
        topology_region=node.topology_region,
    )


def from_info(address: str, info: NsqdInfo | None, topics: Iterable[str] = ()) -> Node:
    """A node as it describes itself; one before 0.2.20 leaves out its address.

    :param address: the one that it was asked at
    :param info: None if it did not answer
    """
    host, _, port = address.removeprefix("http://").removeprefix("https://").rpartition(":")
    if info is None:
        return Node(_bare(host), _bare(host), 0, int(port))
    return Node(
        info.hostname or _bare(host),
        info.broadcast_address or _bare(host),
        info.tcp_port or 0,
        info.http_port or int(port),
        info.version,
        topics=dict.fromkeys(topics, False),
        topology_zone=info.topology_zone or "",
        topology_region=info.topology_region or "",
    )


def unite(answers: Mapping[str, Iterable[NsqdNode]]) -> list[Node]:
    """The nodes that nsqlookupds know, each once, in the order of their host names.

    :param answers: by nsqlookupd
    """
    found: dict[str, Node] = {}
    for lookupd, nodes in answers.items():
        for each in map(from_lookupd, nodes):
            node = found.setdefault(each.tcp_address, each)
            node.remote_addresses.append(f"{lookupd}/{each.remote_address or 'N/A'}")
            for topic, is_tombstoned in each.topics.items():
                node.topics[topic] = node.topics.get(topic, False) or is_tombstoned
    mark_outdated(found.values())
    return in_order(found.values())


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """By host name, then by address."""
    return sorted(nodes, key=lambda node: (node.hostname, node.address))


def mark_outdated(nodes: Iterable[Node]) -> None:
    """Mark those whose version is below the newest of them."""
    nodes = list(nodes)
    newest = max((version_key(node.version) for node in nodes), default=None)
    for node in nodes:
        node.is_out_of_date = version_key(node.version) != newest


def version_key(version: str) -> tuple[int, int, int, bool, str]:
    """For comparing versions; what is no version is the lowest."""
    parts = _VERSION.fullmatch(version)
    if parts is None:
        return 0, 0, 0, True, ""
    major, minor, patch, pre = parts.group(1, 2, 3, 4)
    # A pre-release comes before its release.
    return int(major[:9]), int(minor[:9]), int(patch[:9]), pre is None, pre or ""


class Departures:
    """Which nsqds have left: nsqlookupds listed them, and list them no more.

    An nsqd that crashes or is cut off disappears from every list, as one that was stopped on purpose does. It is kept
    in the overview, and polled, until it is listed again, is dismissed, or a day has passed; unless it was tombstoned,
    which is how an operator says that it is to go. A nsqlookupd that does not answer has made no nsqd leave, nor has
    one that was restarted and waits for its nsqds, as long as they answer.

    Belongs to the core's thread, and never switches.
    """

    def __init__(self) -> None:
        #: All that were listed, by address, as they were last.
        self._listed: dict[str, Node] = {}
        #: Those that left, and when (epoch).
        self.left: dict[str, tuple[Node, float]] = {}
        #: Those of which something was tombstoned since they were first seen.
        self._tombstoned: set[str] = set()

    def look(self, nodes: Iterable[Node], lookupds: Mapping[str, str], now: float) -> None:
        """Compare with the nodes that are listed now.

        :param lookupds: why each nsqlookupd did not answer; empty if it did
        """
        listed = {node.address: node for node in nodes}
        self._tombstoned |= {address for address, node in listed.items() if any(node.topics.values())}
        for address in listed.keys() & self.left.keys():
            del self.left[address]
        for address, node in self._listed.items():
            if address in listed:
                continue
            if not _is_missed(node, lookupds):
                listed[address] = node
            elif not (address in self._tombstoned and all(node.topics.values())):
                self.left[address] = (node, now)
        self._listed = listed
        self.left = {address: each for address, each in self.left.items() if now - each[1] < KEPT}
        self._tombstoned &= listed.keys()

    def tombstone(self, address: str) -> None:
        """Note that somebody tombstones a topic of this nsqd, which then loses the topic at once."""
        self._tombstoned.add(address)

    def dismiss(self, address: str) -> bool:
        """Forget one that left.

        :returns: whether it had
        """
        return self.left.pop(address, None) is not None


def _is_missed(node: Node, lookupds: Mapping[str, str]) -> bool:
    """Whether a nsqlookupd that knew it answers now."""
    known_by = node.remote_addresses
    return any(
        not problem and any(each.startswith(f"{name}/") for each in known_by) for name, problem in lookupds.items()
    )
