"""nsqd's /stats as types (docs/internals 3.4), and the check of a response.

The dicts are those of the JSON, including fields of newer versions. Fields that an older version lacks are 0, "" or
False, and a list that Go sends as null becomes an empty list; only ``clients`` stay None, if they were left out.
"""

from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict, TypeGuard, cast

from gnsq_like.http.decode import Malformed, list_of, value_of

_MOST = 2**63


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


def _defaults(record: type) -> dict[str, str | int]:
    """The fields of a TypedDict that are str, int or bool, with their values if nsqd sends none."""
    return {name: kind() for name, kind in record.__annotations__.items() if kind in (str, int, bool)}


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
    value["producers"] = _list(value, "producers")
    for producer in value["producers"]:
        _complete(producer, _CLIENT)
        producer["pub_counts"] = _list(producer, "pub_counts")
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
    for each in _list(found, "percentiles"):
        if not _is_finite(each.get("value")) or not _is_finite(each.get("quantile")):
            raise Malformed("a percentile is not a number")
        record["e2e_processing_latency"]["percentiles"].append(each)


def _list(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects that an older nsqd does not send."""
    return list_of({name: None, **record}, name, dict)


def _complete(record: dict[str, Any], fields: dict[str, str | int]) -> None:
    for name, default in fields.items():
        value = record.setdefault(name, default)
        if type(value) is not type(default) or (type(value) is int and not -_MOST <= value < _MOST):
            raise Malformed(f'"{name}" is of the wrong type')


def _is_finite(value: object) -> TypeGuard[float]:
    # JSON in Python has NaN and Infinity.
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST
