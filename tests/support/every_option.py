"""A Reader and a Producer with every option, for type checkers; it also runs."""

from __future__ import annotations

import ssl
from typing import TypedDict, Unpack

from gnsq_like import Message, NsqdNode, Producer, Reader, ReaderArguments
from gnsq_like.options import ConnectionOptionsDict, DiscoveryOptionsDict, ReaderOptionsDict


def handler(message: Message) -> None: ...


def on_failure(message: Message, exception: BaseException) -> None: ...


def on_requeue(message: Message, delay: float) -> None: ...


def on_disconnect(address: str, error: Exception | None) -> None: ...


def only_local(node: NsqdNode) -> bool:
    return node.broadcast_address == "localhost"


connection: ConnectionOptionsDict = {
    "client_id": "host",
    "hostname": "host.example.com",
    "user_agent": "clicks/1.0",
    "heartbeat_interval": 30,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 0.1,
    "sample_rate": 50,
    "msg_timeout": 30.0,
    "tls_v1": "prefer",
    "tls_root_ca_file": None,
    "tls_cert": None,
    "tls_key": None,
    "verify": True,
    "server_hostname": "nsqd.example.com",
    "ssl_context": ssl.create_default_context(),
    "snappy": "prefer",
    "deflate": False,
    "deflate_level": 6,
    "auth_secret": lambda: "secret",
    "topology_region": "eu",
    "topology_zone": None,
    "max_frame_bytes": 1024 * 1024,
    "connect_timeout": 5.0,
    "write_timeout": 5.0,
}
discovery: DiscoveryOptionsDict = {
    **connection,
    "lookupd_poll_interval": 15,
    "lookupd_poll_jitter": 0.1,
    "lookupd_timeout": 2.0,
    "lookupd_authorization": "Bearer secret",
    "lookupd_verify": True,
    "lookupd_cert": ("cert.pem", "key.pem"),
    "discovery_filter": only_local,
    "address_map": {"nsqd:4150": "127.0.0.1:4150"},
}
producer = Producer(
    ["127.0.0.1:4150", "127.0.0.1:4152"],
    timeout=5.0,
    retry_unknown=True,
    fail_fast=True,
    max_pending_count=1000,
    max_pending_bytes=1024 * 1024,
    max_msg_bytes=1024,
    max_body_bytes=4096,
    max_redial_delay=5.0,
    encoder="json",
    batching=True,
    max_batch_count=100,
    max_batch_bytes=4096,
    linger=0.01,
    replicas=2,
    quorum=1,
    own_thread=None,
    **discovery,
)
reader = Reader(
    "clicks",
    "archive",
    handler,
    nsqd_tcp_addresses="127.0.0.1:4150",
    on_disconnect=on_disconnect,
    on_failure=on_failure,
    on_requeue=on_requeue,
    max_in_flight=200,
    rate_limit=100.0,
    concurrency=20,
    max_attempts=3,
    max_age=3600,
    default_requeue_delay=10,
    max_requeue_delay=60.0,
    low_rdy_idle_timeout=10.0,
    low_rdy_timeout=30.0,
    low_rdy_probe_timeout=0.25,
    adaptive_rdy=False,
    max_backoff_duration=0,
    backoff_multiplier=0.5,
    backoff_strategy="full_jitter",
    max_redial_delay=5.0,
    spawn="thread",
    log_tracebacks=True,
    decoder="json",
    **discovery,
)


class _Mine(TypedDict):
    max_in_flight: int


def reading(topic: str, **arguments: Unpack[ReaderArguments]) -> Reader:
    """A function that passes on what a Reader takes."""
    return Reader(topic, "archive", handler, **arguments)


mine: _Mine = {"max_in_flight": 5}
options: ReaderOptionsDict = {"max_in_flight": 5, "decoder": None}
readers = [
    reading("clicks", nsqd_tcp_addresses=["127.0.0.1:4150"], on_failure=on_failure, **options),
    reading("clicks", lookupd_http_addresses="127.0.0.1:4161", **mine),
]
