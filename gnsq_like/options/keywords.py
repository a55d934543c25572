"""The options as typed keywords, which editors complete and mypy checks.

``def reading(**options: Unpack[ReaderOptionsDict])``. Made from the option classes by ``make generate``; not to be
edited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict


class ConnectionOptionsDict(TypedDict, total=False):
    """See ``ConnectionOptions``."""

    #: The client's name in nsqd's stats; default: the short host name.
    client_id: str
    #: The client's host in nsqd's stats; default: the full host name.
    hostname: str
    #: The client's software in nsqd's stats.
    user_agent: str
    #: Seconds between nsqd's heartbeats, up to 60 by nsqd's default; an nsqd silent for two intervals is dead.
    heartbeat_interval: float
    #: Size of nsqd's output buffer in bytes; -1 disables it; None for nsqd's default (16384).
    output_buffer_size: int | Literal[-1] | None
    #: Seconds that a message may wait in nsqd's output buffer; -1 for no limit; None for nsqd's default (0.25).
    output_buffer_timeout: float | Literal[-1] | None
    #: Percentage of the channel's messages to receive, nsqd drops the others; 0 for all.
    sample_rate: int
    #: Seconds until nsqd delivers an unanswered message again; None for nsqd's default (60).
    msg_timeout: float | None
    #: TLS: True requires it, "prefer" uses it if nsqd offers it.
    tls_v1: bool | Literal["prefer"]
    #: PEM file with the CA certificates to trust; None for the system's.
    tls_root_ca_file: str | None
    #: PEM file with the client's certificate and chain, for an nsqd that requires one.
    tls_cert: str | None
    #: PEM file with the client's key; None if it is in tls_cert too.
    tls_key: str | None
    #: Whether to verify nsqd's certificate and host name; False is for development.
    verify: bool
    #: The name in nsqd's certificate, or a function of the address that returns it; None for the address's host.
    server_hostname: str | Callable[[str], str] | None
    #: An ssl.SSLContext, instead of tls_root_ca_file, tls_cert, tls_key and verify.
    ssl_context: Any
    #: Snappy compression in both directions: True requires it, "prefer" uses it if offered. Excludes deflate.
    snappy: bool | Literal["prefer"]
    #: Deflate compression in both directions: True requires it, "prefer" uses it if offered. Excludes snappy.
    deflate: bool | Literal["prefer"]
    #: 1 (fast) to 9 (small); nsqd lowers it to its max-deflate-level.
    deflate_level: int
    #: The secret for an nsqd that requires AUTH: a string, or a callable that returns a fresh one per connection.
    auth_secret: str | Callable[[], str] | None
    #: The client's region, for an nsqd newer than 1.3.0 that prefers nearby consumers; None to send none.
    topology_region: str | None
    #: The client's zone within the region; None to send none.
    topology_zone: str | None
    #: Largest accepted frame from nsqd, decompressed; a larger one ends the connection.
    max_frame_bytes: int
    #: Seconds for dialling, IDENTIFY, TLS and AUTH together.
    connect_timeout: float
    #: Seconds for which nsqd may accept no bytes while output is waiting; then the connection is dead.
    write_timeout: float


class DiscoveryOptionsDict(ConnectionOptionsDict, total=False):
    """See ``DiscoveryOptions``."""

    #: Seconds between two polls of the nsqlookupds.
    lookupd_poll_interval: float
    #: Random part of that interval, drawn anew each time; 0 to 1.
    lookupd_poll_jitter: float
    #: Seconds for a whole request to an nsqlookupd.
    lookupd_timeout: float
    #: The Authorization header for nsqlookupds: a string, or a callable that returns a fresh one.
    lookupd_authorization: str | Callable[[], str] | None
    #: For nsqlookupds with https: True, False, or the path of a file or directory of CA certificates.
    lookupd_verify: bool | str
    #: Client certificate for nsqlookupds with https: the path of a file with certificate and key, or both paths.
    lookupd_cert: str | tuple[str, str] | None
    #: Called with each discovered nsqd (an NsqdNode); returning False excludes it.
    discovery_filter: Callable[[Any], bool] | None
    #: Addresses to dial instead of those that nsqlookupd lists: a mapping, or a callable that takes the listed
    #: "host:port". What is not in it, or None, is dialled as listed.
    address_map: Mapping[str, str] | Callable[[str], str | None] | None


class UnencodedProducerOptionsDict(DiscoveryOptionsDict, total=False):
    """See ``ProducerOptions``: all but the encoder."""

    #: Seconds for a publish in total: connecting, waiting for room, writing, and nsqd's answer.
    timeout: float
    #: Whether publishes fail at once while every nsqd is unreachable, and do not wait for one until their deadline.
    fail_fast: bool
    #: Whether to retry a publish whose outcome is unknown, at the risk of a duplicate.
    retry_unknown: bool
    #: Maximum number of unanswered publishes per connection; further ones wait.
    max_pending_count: int
    #: Maximum bytes of these; a single publish may be larger.
    max_pending_bytes: int
    #: Largest message body; set it to nsqd's flag max-msg-size, which nsqd does not report to clients.
    max_msg_bytes: int
    #: Largest body of an MPUB, nsqd's flag max-body-size; multi_publish splits at it.
    max_body_bytes: int
    #: Longest delay, in seconds, before redialling an nsqd whose refusal a retry cannot cure. One that cannot be
    #: reached is redialled after at most half the publish timeout.
    max_redial_delay: float
    #: Whether to combine concurrent publishes into one MPUB per topic.
    batching: bool
    #: Maximum number of messages in a batch.
    max_batch_count: int
    #: Maximum bytes of a batch, never more than max_body_bytes; a larger message is sent alone.
    max_batch_bytes: int
    #: Seconds that the first message of a batch waits for others; 0 collects only concurrent publishes.
    linger: float
    #: Number of different nsqds to which each message is published.
    replicas: int
    #: Number of these that must confirm it; None for all.
    quorum: int | None
    #: Whether the connections run in a background thread (True) or in the hub of the first thread that publishes
    #: (False). None: the former unless threading is patched and that thread is the main one.
    own_thread: bool | None


class ProducerOptionsDict(UnencodedProducerOptionsDict, total=False):
    """See ``ProducerOptions``."""

    #: Encodes bodies: "json", "msgpack", or a callable that returns bytes; None if bodies are bytes.
    encoder: Literal["json", "msgpack"] | Callable[[Any], bytes] | None


class ReaderOptionsDict(DiscoveryOptionsDict, total=False):
    """See ``ReaderOptions``."""

    #: Maximum number of messages in flight, on all connections together.
    max_in_flight: int
    #: Messages a second that the Reader receives, redeliveries included; None for no limit.
    rate_limit: float | None
    #: Maximum number of handlers that run at once; None for max_in_flight.
    concurrency: int | None
    #: Number of deliveries after which a message is given up; 0 for never.
    max_attempts: int
    #: Seconds since its publishing after which a message is finished without being handled; None for never.
    max_age: float | None
    #: Requeue delay of a failed message in seconds, multiplied by its attempts.
    default_requeue_delay: float
    #: Upper limit of that delay, in seconds.
    max_requeue_delay: float
    #: Longest time without a message, in seconds, for which a connection keeps a place while others have none; mostly
    #: it gives the place up far sooner.
    low_rdy_idle_timeout: float
    #: If max_in_flight is below the number of busy nsqds, they take turns of at most so many seconds.
    low_rdy_timeout: float
    #: Longest wait of a backoff test for a message on one connection, in seconds, while there are others.
    low_rdy_probe_timeout: float
    #: Whether RDY follows the traffic, so that sparse messages do not wait in nsqd's output buffer.
    adaptive_rdy: bool
    #: Longest pause of the whole Reader after failing handlers, in seconds; 0 disables backoff.
    max_backoff_duration: float
    #: Unit of the backoff strategies, in seconds.
    backoff_multiplier: float
    #: "exponential", "full_jitter", or a callable that returns seconds for a level, 1 and above.
    backoff_strategy: Literal["exponential", "full_jitter"] | Callable[[int], float]
    #: Longest delay before redialling an nsqd, in seconds.
    max_redial_delay: float
    #: "greenlet", or "thread" for handlers that use much CPU or block outside gevent.
    spawn: Literal["greenlet", "thread"]
    #: Whether each failure of a handler is logged as an error with its traceback, not only the first of its kind within
    #: a minute.
    log_tracebacks: bool
    #: Decodes bodies for message.data: "json", "msgpack", or a callable that takes bytes; None if bodies stay bytes.
    decoder: Literal["json", "msgpack"] | Callable[[bytes], Any] | None
