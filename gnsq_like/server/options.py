"""The daemons' options: NSQ's flags in snake case, with NSQ's defaults (NSQ.md 7), durations in seconds.

One thing differs from NSQ: the daemons listen on the loopback address unless told otherwise.
Only flags that have an effect are here.
"""

from __future__ import annotations

import hashlib
import socket
import zlib
from dataclasses import dataclass, field

from gnsq_like.errors import InvalidOption

#: What the daemons say they are: clients switch features on by it.
VERSION = "1.3.0"

#: node ids are 10 bits of a message id (NSQ.md 1.15).
MAX_NODE_ID = 1024


def default_node_id(hostname: str | None = None) -> int:
    """The node id that nsqd makes of a host's name."""
    name = socket.gethostname() if hostname is None else hostname
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % MAX_NODE_ID


@dataclass(frozen=True)
class NsqdOptions:
    """Options of an nsqd."""

    #: "host:port" (port 0: any free one), "[ipv6]:port" or "unix:/path".
    tcp_address: str = "127.0.0.1:4150"
    #: The same; empty for no HTTP.
    http_address: str = "127.0.0.1:4151"
    #: What nsqlookupds and /info are told; empty for the host that tcp_address binds to.
    broadcast_address: str = ""
    #: 0 for the port that is listened on.
    broadcast_tcp_port: int = 0
    broadcast_http_port: int = 0
    lookupd_tcp_addresses: tuple[str, ...] = ()
    #: Seconds for reaching a nsqlookupd's HTTP API, and for its whole answer.
    http_client_connect_timeout: float = 2.0
    http_client_request_timeout: float = 5.0
    #: Part of every message id; daemons of one cluster need different ones.
    node_id: int = field(default_factory=default_node_id)
    #: Messages that an ephemeral topic or channel holds; what is above is dropped. Others hold any number.
    mem_queue_size: int = 10000
    msg_timeout: float = 60.0
    max_msg_timeout: float = 900.0
    #: Bytes.
    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_req_timeout: float = 3600.0
    max_heartbeat_interval: float = 60.0
    max_rdy_count: int = 2500
    #: Bytes.
    max_output_buffer_size: int = 64 * 1024
    max_output_buffer_timeout: float = 30.0
    min_output_buffer_timeout: float = 0.025
    output_buffer_timeout: float = 0.25
    #: 0 for any number.
    max_channel_consumers: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.node_id < MAX_NODE_ID:
            raise InvalidOption("node_id", self.node_id, f"it must be from 0 to {MAX_NODE_ID - 1}")


@dataclass(frozen=True)
class NsqlookupdOptions:
    """Options of a nsqlookupd."""

    #: "host:port" (port 0: any free one), "[ipv6]:port" or "unix:/path".
    tcp_address: str = "127.0.0.1:4160"
    http_address: str = "127.0.0.1:4161"
    #: What nsqds are told; empty for the host that tcp_address binds to.
    broadcast_address: str = ""
    #: Seconds without a PING after which a producer is left out of answers.
    inactive_producer_timeout: float = 300.0
    #: Seconds for which a tombstone hides a producer.
    tombstone_lifetime: float = 45.0
