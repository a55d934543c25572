"""``LookupdClient``: a client of nsqlookupd's HTTP API (docs/internals 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnsq_like.addresses import join_host_port
from gnsq_like.errors import HTTPStatusError, InvalidAddress
from gnsq_like.http.client import HTTPClient, Malformed, channel_params, list_of, record_of, topic_params

__all__ = ["LookupResult", "LookupdClient", "NsqdNode"]


@dataclass(frozen=True, slots=True)
class NsqdNode:
    """An nsqd, as it registered with nsqlookupd."""

    #: The name or IP address at which it can be reached, according to its own configuration.
    broadcast_address: str
    tcp_port: int
    http_port: int
    hostname: str = ""
    version: str = ""
    #: "ip:port" from which it is connected to nsqlookupd.
    remote_address: str = ""
    #: From nodes() only: its topics, and for each of them whether the nsqd is tombstoned.
    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()
    #: Its configured location; empty up to NSQ 1.3.0.
    topology_zone: str = ""
    topology_region: str = ""

    @property
    def tcp_address(self) -> str:
        """ "host:port" or "[ipv6]:port", for a Connection, Reader or Producer."""
        return _join(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        """ "host:port" or "[ipv6]:port", for an NsqdHTTPClient."""
        return _join(self.broadcast_address, self.http_port)

    @property
    def tombstoned_topics(self) -> set[str]:
        """The topics for which it is tombstoned."""
        return {topic for topic, is_tombstoned in zip(self.topics, self.tombstones, strict=False) if is_tombstoned}


@dataclass(frozen=True, slots=True)
class LookupResult:
    """A topic's channels and the nsqds that have it."""

    channels: tuple[str, ...] = ()
    producers: tuple[NsqdNode, ...] = ()


class LookupdClient(HTTPClient):
    """Asks one nsqlookupd. See :class:`~gnsq_like.http.client.HTTPClient` for the arguments and errors.

    Methods that take a topic or channel raise :exc:`~gnsq_like.errors.InvalidName` for an invalid name.
    """

    def info(self) -> dict[str, Any]:
        """Its ``"version"``."""
        return self._get_object("/info", {}, dict)

    def topics(self) -> list[str]:
        """All topics it knows, in no order, including those that no nsqd has."""
        return self._get_object("/topics", {}, lambda value: list_of(value, "topics", str))

    def channels(self, topic: str) -> list[str]:
        """All channels of a topic that it knows, in no order; empty for an unknown topic."""
        return self._get_object("/channels", topic_params(topic), lambda value: list_of(value, "channels", str))

    def lookup(self, topic: str, *, missing_ok: bool = False) -> LookupResult:
        """The nsqds that have a topic, and its channels.

        :param missing_ok: whether to return an empty result for an unknown topic
        :raises HTTPStatusError: the topic is unknown: ``status`` is 404, ``message`` "TOPIC_NOT_FOUND"
        """
        try:
            return self._get_object("/lookup", topic_params(topic), _lookup_result)
        except HTTPStatusError as exc:
            if missing_ok and exc.message == "TOPIC_NOT_FOUND":
                return LookupResult()
            raise

    def nodes(self) -> list[NsqdNode]:
        """All nsqds connected to it, with their topics, in no order."""
        return self._get_object("/nodes", {}, _nodes)

    def create_topic(self, topic: str) -> None:
        """Register a topic, although no nsqd has it."""
        self._post("/topic/create", topic_params(topic))

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its channels; fine if it is unknown. The nsqds keep theirs."""
        self._post("/topic/delete", topic_params(topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """Register a channel, and its topic."""
        self._post("/channel/create", channel_params(topic, channel))

    def delete_channel(self, topic: str, channel: str) -> None:
        """Forget a channel.

        :raises HTTPStatusError: 404 "CHANNEL_NOT_FOUND"
        """
        self._post("/channel/delete", channel_params(topic, channel))

    def tombstone(self, topic: str, node: NsqdNode | str) -> None:
        """Hide an nsqd from the topic's lookups for a while (45 s by default); fine if it is unknown.

        :param node: as returned by nodes(), or its "broadcast_address:http_port" (IPv6 without brackets here)
        """
        if isinstance(node, NsqdNode):
            # nsqlookupd compares with exactly this text: no brackets.
            node = f"{node.broadcast_address}:{node.http_port}"
        if not isinstance(node, str) or not node.rpartition(":")[0]:
            raise InvalidAddress(node, "a node is its broadcast_address:http_port")
        self._post("/topic/tombstone", {**topic_params(topic), "node": node})

    def debug(self) -> dict[str, list[dict[str, Any]]]:
        """Its whole database: the producers of each "category:key:subkey" that has any."""
        return self._get_object("/debug", {}, lambda value: {key: list_of(value, key, dict) for key in value})


def _join(host: str, port: int) -> str:
    # An IPv6 broadcast address may be configured with its brackets.
    return join_host_port(host.removeprefix("[").removesuffix("]"), port)


def _lookup_result(value: dict[str, Any]) -> LookupResult:
    channels = list_of(value, "channels", str)
    return LookupResult(tuple(channels), tuple(_nodes(value)))


def _nodes(value: dict[str, Any]) -> list[NsqdNode]:
    return [_node(record) for record in list_of(value, "producers", dict)]


def _node(record: dict[str, Any]) -> NsqdNode:
    node = record_of(
        NsqdNode,
        record,
        topics=tuple(list_of(record, "topics", str, None)),
        tombstones=tuple(list_of(record, "tombstones", bool, None)),
    )
    if not node.broadcast_address:
        raise Malformed('"broadcast_address" is empty')
    return node
