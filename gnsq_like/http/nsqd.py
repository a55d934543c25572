"""``NsqdHTTPClient``: a client of nsqd's HTTP API (docs/internals 3), and what nsqd answers as types.

The dicts of /stats are those of the JSON, including fields of newer versions. Fields that an older version lacks are 0,
"" or False, and a list that Go sends as null becomes an empty list; only ``clients`` stay None, if they were left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict, TypeGuard, cast, get_type_hints

from gnsq_like.errors import InvalidOption, check_seconds
from gnsq_like.http.client import (
    HTTPClient,
    Malformed,
    channel_params,
    json_of,
    list_of,
    record_of,
    text_of,
    topic_params,
    value_of,
)
from gnsq_like.wire.commands import encode_body, mpub_body
from gnsq_like.wire.names import encode_channel

__all__ = ["NsqdHTTPClient", "NsqdInfo"]

_NANOSECONDS = 1_000_000_000
_OPTION = re.compile(r"[a-z0-9_]+")
_MOST = 2**63


@dataclass(frozen=True, slots=True)
class NsqdInfo:
    """An nsqd's description of itself. Fields that an older one does not send are None."""

    version: str
    broadcast_address: str | None = None
    hostname: str | None = None
    #: -1 where it listens on a unix socket.
    http_port: int | None = None
    tcp_port: int | None = None
    #: Seconds since the epoch.
    start_time: int | None = None
    #: Seconds; the most that a client may ask for in IDENTIFY.
    max_heartbeat_interval: float | None = None
    max_output_buffer_timeout: float | None = None
    max_output_buffer_size: int | None = None
    max_deflate_level: int | None = None
    #: Its configured location; empty if not set.
    topology_zone: str | None = None
    topology_region: str | None = None
    #: The whole JSON object, with fields that newer versions add; its durations are nanoseconds.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


class ClientStats(TypedDict):
    """A consumer's connection, or a publisher's."""

    remote_address: str
    version: str
    client_id: str
    hostname: str
    user_agent: str
    #: 3 for a consumer, 4 for one that has sent CLS.
    state: int
    #: Seconds since the epoch.
    connect_ts: int
    in_flight_count: int
    ready_count: int
    finish_count: int
    requeue_count: int
    message_count: int
    #: Percent; 0 for all messages.
    sample_rate: int
    deflate: bool
    snappy: bool
    authed: bool
    auth_identity: str
    auth_identity_url: str
    topology_region: str
    topology_zone: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class PublishCount(TypedDict):
    """How many messages a connection has published to a topic."""

    topic: str
    count: int


class ProducerStats(ClientStats):
    """A connection that has published."""

    pub_counts: list[PublishCount]


class Percentile(TypedDict):
    """A quantile of a latency, and its nanoseconds."""

    quantile: float
    value: float


class LatencyStats(TypedDict):
    """The time from publishing to FIN; only measured if percentiles are configured."""

    count: int
    percentiles: list[Percentile]


class ChannelStats(TypedDict):
    """A channel."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    message_count: int
    #: Messages taken from memory for clients of nsqd's zone, of its region, and elsewhere (docs/internals 7.4).
    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int
    client_count: int
    paused: bool
    #: None if they were left out.
    clients: list[ClientStats] | None
    e2e_processing_latency: LatencyStats


class TopicStats(TypedDict):
    """A topic."""

    topic_name: str
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    channels: list[ChannelStats]
    e2e_processing_latency: LatencyStats


class NsqdStats(TypedDict):
    """The whole response."""

    version: str
    health: str
    #: Seconds since the epoch.
    start_time: int
    topics: list[TopicStats]
    producers: list[ProducerStats]
    #: Of Go's memory; absent with ``include_mem=False``.
    memory: NotRequired[dict[str, Any]]


class NsqdHTTPClient(HTTPClient):
    """Talks to one nsqd over HTTP. See :class:`~gnsq_like.http.client.HTTPClient` for the arguments and errors.

    Methods that take a topic or channel raise :exc:`~gnsq_like.errors.InvalidName` for an invalid name; those that
    need it to exist raise HTTPStatusError with ``message`` "TOPIC_NOT_FOUND" or "CHANNEL_NOT_FOUND". To publish
    many messages, use a Producer: it is faster, and its errors tell whether a message was sent. nsqd's profiles are for
    Go's own tool: ``go tool pprof http://127.0.0.1:4151/debug/pprof/heap``.
    """

    def info(self) -> NsqdInfo:
        """Its version, addresses and limits."""
        return self._get_object("/info", {}, _info)

    def stats(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        include_clients: bool = True,
        include_mem: bool = True,
    ) -> NsqdStats:
        """Its topics, channels and clients, as nsqd sends them (docs/internals 3.4); latencies in nanoseconds.

        A count or text that an older nsqd does not send is 0 or empty.

        :param topic: only this topic; ``"topics"`` is an empty list if there is none of that name
        :param channel: only channels of this name, and topics that have one
        :param include_clients: False leaves out the clients, which may be many
        :param include_mem: False leaves out ``"memory"``, which nsqd pauses to collect
        """
        params = _stats_params(topic, channel, include_clients, include_mem)
        return self._get_object("/stats", {**params, "format": "json"}, checked_stats)

    def stats_text(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        include_clients: bool = True,
        include_mem: bool = True,
    ) -> str:
        """The same as :meth:`stats`, as nsqd's text for people to read."""
        params = _stats_params(topic, channel, include_clients, include_mem)
        return text_of(self._request("GET", "/stats", {**params, "format": "text"}).body)

    def publish(self, topic: str, body: bytes, defer: float | None = None) -> None:
        """Publish one message; returns when nsqd has it.

        :param defer: seconds until nsqd delivers it, up to its max-req-timeout; rounded to milliseconds
        :raises InvalidBody: an empty body, or one that is not bytes
        :raises HTTPStatusError: nsqd refused it, for instance 413 "MSG_TOO_BIG", 400 "INVALID_DEFER"
        :raises HTTPRequestFailed: nsqd may or may not have it
        """
        params = topic_params(topic)
        if defer is not None:
            check_seconds("defer", defer, minimum=0)
            params["defer"] = str(round(defer * 1000))
        self._expect_ok(self._post("/pub", params, encode_body(body)))

    def multi_publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish several messages, all or none; returns when nsqd has them.

        They are sent in one request, and must together fit into nsqd's max-body-size (5 MiB by default).

        :raises InvalidBody: no body at all, or one that is empty or not bytes
        :raises HTTPStatusError: nsqd refused them, for instance 413 "BODY_TOO_BIG"
        :raises HTTPRequestFailed: nsqd may or may not have them
        """
        params = {**topic_params(topic), "binary": "true"}
        self._expect_ok(self._post("/mpub", params, mpub_body(list(bodies))))

    def create_topic(self, topic: str) -> None:
        """Create a topic; fine if it exists."""
        self._post("/topic/create", topic_params(topic))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and all their messages."""
        self._post("/topic/delete", topic_params(topic))

    def empty_topic(self, topic: str) -> None:
        """Drop the messages that the topic has not passed to its channels; the channels keep theirs."""
        self._post("/topic/empty", topic_params(topic))

    def pause_topic(self, topic: str) -> None:
        """Pass no more of the topic's messages to its channels; the topic keeps them."""
        self._post("/topic/pause", topic_params(topic))

    def unpause_topic(self, topic: str) -> None:
        """Pass the topic's messages to its channels again."""
        self._post("/topic/unpause", topic_params(topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel of an existing topic; fine if the channel exists too."""
        self._post("/channel/create", channel_params(topic, channel))

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages, and disconnect its consumers."""
        self._post("/channel/delete", channel_params(topic, channel))

    def empty_channel(self, topic: str, channel: str) -> None:
        """Drop all messages of a channel, including those in flight and deferred."""
        self._post("/channel/empty", channel_params(topic, channel))

    def pause_channel(self, topic: str, channel: str) -> None:
        """Deliver no more of the channel's messages; the channel keeps them."""
        self._post("/channel/pause", channel_params(topic, channel))

    def unpause_channel(self, topic: str, channel: str) -> None:
        """Deliver the channel's messages again."""
        self._post("/channel/unpause", channel_params(topic, channel))

    def config_get(self, option: str) -> Any:
        """The value of one of nsqd's options: text as str, other types as JSON has them; durations in nanoseconds.

        :param option: its name in nsqd's configuration file, such as ``"max_msg_size"``
        :raises HTTPStatusError: 400 "INVALID_OPTION"
        """
        return self._config("GET", option)

    def config_set(self, option: str, value: str | Sequence[str]) -> Any:
        """Change an option of the running nsqd, and return its new value as :meth:`config_get` does.

        :param option: nsqd 1.3.0 accepts ``"nsqlookupd_tcp_addresses"`` (a list of "host:port") and
            ``"log_level"`` ("debug", "info", "warn", "error" or "fatal")
        :raises HTTPStatusError: 400 "INVALID_OPTION", 400 or 413 "INVALID_VALUE"
        """
        text = value if isinstance(value, str) else json.dumps(list(value))
        return self._config("PUT", option, text.encode())

    def _config(self, method: str, option: str, body: bytes | None = None) -> Any:
        if not isinstance(option, str) or not _OPTION.fullmatch(option):
            raise InvalidOption("option", option, "names of nsqd's options consist of a-z, 0-9 and _")
        answer = self._request(method, f"/config/{option}", body=body)
        # Only the content type distinguishes JSON from plain text: the text 5 is not a number.
        is_json = answer.content_type.startswith("application/json")
        return self._decoded(answer, json_of if is_json else text_of)


def _info(value: dict[str, object]) -> NsqdInfo:
    seconds = {
        name: value_of(value, name, int) / _NANOSECONDS
        for name in ("max_heartbeat_interval", "max_output_buffer_timeout")
        if name in value
    }
    return record_of(NsqdInfo, value, raw=value, **seconds)


def _stats_params(topic: str | None, channel: str | None, include_clients: bool, include_mem: bool) -> dict[str, str]:
    # nsqd knows only these two words, and reads any other as true.
    params = {
        "include_clients": "true" if include_clients else "false",
        "include_mem": "true" if include_mem else "false",
    }
    if topic is not None:
        params |= topic_params(topic)
    if channel is not None:
        encode_channel(channel)
        params["channel"] = channel
    return params


def _defaults(record: type) -> dict[str, str | int]:
    """The fields of a TypedDict that are str, int or bool, with their values if nsqd sends none."""
    return {name: kind() for name, kind in get_type_hints(record).items() if kind in (str, int, bool)}


_STATS, _TOPIC, _CHANNEL, _CLIENT = map(_defaults, (NsqdStats, TopicStats, ChannelStats, ClientStats))


def checked_stats(value: dict[str, Any]) -> NsqdStats:
    """The object of a /stats, completed in place.

    :raises Malformed: it has not the form of nsqd's /stats
    """
    _complete(value, _STATS)
    value["topics"] = list_of(value, "topics", dict)
    for topic in value["topics"]:
        value_of(topic, "topic_name", str)
        _complete(topic, _TOPIC)
        topic["channels"] = list_of(topic, "channels", dict)
        _check_latency(topic)
        for channel in topic["channels"]:
            _check_channel(channel)
    value["producers"] = list_of(value, "producers", dict, None)
    for producer in value["producers"]:
        _complete(producer, _CLIENT)
        producer["pub_counts"] = list_of(producer, "pub_counts", dict, None)
        for each in producer["pub_counts"]:
            value_of(each, "topic", str)
            value_of(each, "count", int)
    return cast(NsqdStats, value)


def _check_channel(channel: dict[str, Any]) -> None:
    value_of(channel, "channel_name", str)
    clients: Iterable[Any] = ()
    if channel.setdefault("clients", None) is not None:
        clients = list_of(channel, "clients", dict)
    for client in clients:
        _complete(client, _CLIENT)
    _complete(channel, _CHANNEL)
    channel["client_count"] = channel["client_count"] or len([*clients])  # nsqd before 1.2 counts none
    _check_latency(channel)


def _check_latency(record: dict[str, Any]) -> None:
    found = record.get("e2e_processing_latency") or {}
    if not isinstance(found, dict):
        raise Malformed('"e2e_processing_latency" is not an object')
    record["e2e_processing_latency"] = {"count": value_of(found, "count", int, 0), "percentiles": []}
    for each in list_of(found, "percentiles", dict, None):
        if not _is_finite(each.get("value")) or not _is_finite(each.get("quantile")):
            raise Malformed("a percentile is not a number")
        record["e2e_processing_latency"]["percentiles"].append(each)


def _complete(record: dict[str, Any], fields: dict[str, str | int]) -> None:
    for name, default in fields.items():
        value = record.setdefault(name, default)
        if type(value) is not type(default) or (type(value) is int and not -_MOST <= value < _MOST):
            raise Malformed(f'"{name}" is of the wrong type')


def _is_finite(value: object) -> TypeGuard[float]:
    # JSON in Python has NaN and Infinity.
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST
