"""The nsqds of a cluster: those that nsqlookupds know, united, or those that were given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gnsq_like.addresses import join_host_port
from gnsq_like.cluster.figures import TopicFigures, of_node
from gnsq_like.http.nsqd import NsqdInfo
from gnsq_like.http.nsqlookupd import NsqdNode

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?(\+.*)?")


@dataclass(slots=True)
class Node:
    """An nsqd."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str = ""
    #: The nsqlookupds that know it, and the "ip:port" from which it is connected to each.
    lookupds: dict[str, str] = field(default_factory=dict)
    #: Its topics, and whether each is tombstoned.
    topics: dict[str, bool] = field(default_factory=dict)
    is_out_of_date: bool = False
    topology_zone: str = ""
    topology_region: str = ""
    #: The address that it was asked at, if that is its name: its broadcast address may be unreachable from here.
    reached_at: str = ""

    @property
    def address(self) -> str:
        """The address of its HTTP API, which is its name in commands, and in the admin's API and pages."""
        return self.reached_at or join_host_port(_bare(self.broadcast_address), self.http_port)

    @property
    def tcp_address(self) -> str:
        """The address to which Readers and Producers connect."""
        host = _host_and_port(self.reached_at)[0] if self.reached_at else _bare(self.broadcast_address)
        return join_host_port(host, self.tcp_port)

    @property
    def remote_addresses(self) -> list[str]:
        """ "<nsqlookupd>/<ip:port>" for each nsqlookupd that knows it, as nsqadmin writes it."""
        return [f"{lookupd}/{remote or 'N/A'}" for lookupd, remote in self.lookupds.items()]

    @property
    def place(self) -> str:
        """Its region and zone, for people; empty if it has none."""
        return place_of(self.topology_region, self.topology_zone)

    @property
    def of_client(self) -> dict[str, str]:
        """The fields about the node in a client's record."""
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
            "remote_address": next(iter(self.lookupds.values()), ""),
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


def _host_and_port(address: str) -> tuple[str, int]:
    """Of an address or URL."""
    netloc = urlsplit(address if "://" in address else f"//{address}").netloc
    host, colon, port = netloc.rpartition(":")
    return (_bare(host), int(port)) if colon and port.isdigit() else (_bare(netloc), 0)


def from_lookupd(node: NsqdNode, lookupd: str) -> Node:
    """A node as this nsqlookupd describes it."""
    hidden = node.tombstoned_topics
    return Node(
        node.hostname,
        node.broadcast_address,
        node.tcp_port,
        node.http_port,
        node.version,
        {lookupd: node.remote_address},
        topics={topic: topic in hidden for topic in node.topics},
        topology_zone=node.topology_zone,
        topology_region=node.topology_region,
    )


def from_info(address: str, info: NsqdInfo | None, topics: Iterable[str] = ()) -> Node:
    """A node as it describes itself, named by the address that it was asked at; one before 0.2.20 leaves out its own.

    :param info: None if it did not answer
    """
    host, port = _host_and_port(address)
    if info is None:
        return Node(host, host, 0, port, reached_at=address)
    return Node(
        info.hostname or host,
        info.broadcast_address or host,
        info.tcp_port or 0,
        info.http_port or port,
        info.version,
        topics=dict.fromkeys(topics, False),
        topology_zone=info.topology_zone or "",
        topology_region=info.topology_region or "",
        reached_at=address,
    )


def unite(answers: Mapping[str, Iterable[NsqdNode]]) -> list[Node]:
    """The nodes that nsqlookupds know, each once, in the order of their host names.

    :param answers: by nsqlookupd
    """
    found: dict[str, Node] = {}
    for lookupd, nodes in answers.items():
        for each in (from_lookupd(node, lookupd) for node in nodes):
            node = found.setdefault(each.tcp_address, each)
            node.lookupds |= each.lookupds
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
    """A key for comparing versions; a malformed version is the lowest."""
    parts = _VERSION.fullmatch(version)
    if parts is None:
        return 0, 0, 0, True, ""
    major, minor, patch, pre = parts.group(1, 2, 3, 4)
    # A pre-release comes before its release.
    return int(major[:9]), int(minor[:9]), int(patch[:9]), pre is None, pre or ""
