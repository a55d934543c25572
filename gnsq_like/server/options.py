"""The daemons' options: NSQ's flags in snake case, with NSQ's defaults (docs/internals 7), durations in seconds.

One thing differs from NSQ: the daemons listen on the loopback address unless told otherwise.
Only flags that have an effect are here.
"""

from __future__ import annotations

import hashlib
import socket
import zlib
from dataclasses import dataclass, field

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidOption

#: What the daemons say they are: clients switch features on by it.
VERSION = "1.3.0"

#: Options that NSQ's config file and /config know by another name (docs/internals 7).
_CONFIG_NAMES = {"node_id": "id", "lookupd_tcp_addresses": "nsqlookupd_tcp_addresses"}

#: NSQ's log levels, as it numbers them from 1 on; "warn" is WARNING to ``logging``, "fatal" is CRITICAL.
LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")

#: What tls_min_version may be, and the number of that version in TLS itself.
TLS_VERSIONS = {"tls1.2": 0x0303, "tls1.3": 0x0304}
_LEAST_TLS_VERSION = "tls1.2"
TLS_REQUIRED = ("false", "tcp-https", "true")
_CLIENT_AUTH_POLICIES = ("", "require", "require-verify")

#: The least that some options may be.
_LEAST = {"mem_queue_size": 0, "max_bytes_per_file": 1, "sync_every": 1, "sync_timeout": 0.001}

#: node ids are 10 bits of a message id (docs/internals 1.15).
MAX_NODE_ID = 1024


def default_node_id(hostname: str | None = None) -> int:
    """The node id that nsqd makes of a host's name."""
    name = socket.gethostname() if hostname is None else hostname
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % MAX_NODE_ID


def config_name(option: str) -> str:
    """What NSQ's config file and /config call an option."""
    return _CONFIG_NAMES.get(option, option)


def _log_level(given: str) -> str:
    level = given.lower()
    if level not in LOG_LEVELS:
        raise InvalidOption("log_level", given, f"it must be one of {', '.join(LOG_LEVELS)}")
    return level


@dataclass(frozen=True)
class NsqdOptions:
    """Options of an nsqd."""

    #: "host:port" (port 0: any free one), "[ipv6]:port" or "unix:/path".
    tcp_address: str = "127.0.0.1:4150"
    #: The same; empty for no HTTP.
    http_address: str = "127.0.0.1:4151"
    #: "host:port" for HTTP over TLS; listened on only where there is a tls_cert, empty for never.
    https_address: str = "127.0.0.1:4152"
    #: What nsqlookupds and /info are told; empty for the host that tcp_address binds to.
    broadcast_address: str = ""
    #: 0 for the port that is listened on.
    broadcast_tcp_port: int = 0
    broadcast_http_port: int = 0
    lookupd_tcp_addresses: tuple[str, ...] = ()
    #: Auth servers, "host:port" or a URL, asked about every client that wants to publish or subscribe; none: no AUTH.
    auth_http_addresses: tuple[str, ...] = ()
    #: Seconds for reaching an auth server or a nsqlookupd's HTTP API, and for its whole answer.
    http_client_connect_timeout: float = 2.0
    http_client_request_timeout: float = 5.0
    #: Part of every message id; daemons of one cluster need different ones.
    node_id: int = field(default_factory=default_node_id)
    #: Directory for messages that do not fit in memory, and for all of them and the names of topics and channels
    #: when the daemon stops. Empty for none: everything is in memory only.
    data_path: str = ""
    #: Messages that a topic or channel holds in memory; what is above goes to disk, and is dropped where the topic
    #: or channel is ephemeral. Without a data_path, durable ones hold any number.
    mem_queue_size: int = 10000
    #: Bytes of a file on disk, after which the next is begun.
    max_bytes_per_file: int = 100 * 1024 * 1024
    #: Messages written and read after which a queue is synced to disk, and seconds after which it is anyway.
    sync_every: int = 2500
    sync_timeout: float = 2.0
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
    #: PEM files: the certificate (with those between it and its CA) and its key. Both, or no TLS.
    tls_cert: str = ""
    tls_key: str = ""
    #: PEM file of the CAs that sign client certificates and those of auth servers; empty: the system's.
    tls_root_ca_file: str = ""
    #: "require" or "require-verify" for clients with certificates only; then TLS is required, too. Both verify
    #: here: Python's ssl takes no certificate that it cannot verify, so "require" needs tls_root_ca_file.
    tls_client_auth_policy: str = ""
    #: Whether clients without TLS are refused: "false", "true", or "tcp-https", which leaves plain HTTP open.
    tls_required: str = "false"
    #: The least version. NSQ's default is tls1.0; Python's OpenSSL speaks none below 1.2, nor should one (RFC 8996).
    tls_min_version: str = _LEAST_TLS_VERSION
    #: What clients may negotiate.
    deflate: bool = True
    max_deflate_level: int = 6
    snappy: bool = True
    #: "host:port" of a statsd to push to, by UDP; empty for none.
    statsd_address: str = ""
    #: What the names there begin with; "%s" stands for the broadcast address and the HTTP port.
    statsd_prefix: str = "nsq.%s"
    statsd_interval: float = 60.0
    statsd_mem_stats: bool = True
    #: Bytes of one packet.
    statsd_udp_packet_size: int = 508
    statsd_exclude_ephemeral: bool = False
    #: Percentiles of the time from publishing to FIN, in /stats: 0.99 for 99 %.
    e2e_processing_latency_percentiles: tuple[float, ...] = ()
    #: The window that they are of.
    e2e_processing_latency_window_time: float = 600.0
    #: What the daemon's process logs; "debug", "info", "warn", "error" or "fatal".
    log_level: str = "info"
    #: What each line of that begins with.
    log_prefix: str = "[nsqd] "

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", _log_level(self.log_level))
        self._check_tls()
        if not 1 <= self.max_deflate_level <= 9:
            raise InvalidOption("max_deflate_level", self.max_deflate_level, "--max-deflate-level must be [1,9]")
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) < least:
                raise InvalidOption(name, value, f"it must be at least {least}")
        if self.statsd_address:
            parse_address(self.statsd_address)
        for percentile in self.e2e_processing_latency_percentiles:
            if not 0 < percentile <= 1:
                reason = f"invalid E2E processing latency percentile: {percentile}"
                raise InvalidOption("e2e_processing_latency_percentiles", percentile, reason)
        if not 0 <= self.node_id < MAX_NODE_ID:
            raise InvalidOption("node_id", self.node_id, f"it must be from 0 to {MAX_NODE_ID - 1}")

    def _check_tls(self) -> None:
        policy, required = self.tls_client_auth_policy, str(self.tls_required).lower()
        if required not in TLS_REQUIRED:
            raise InvalidOption("tls_required", self.tls_required, f"it must be one of {', '.join(TLS_REQUIRED)}")
        if policy not in _CLIENT_AUTH_POLICIES:
            raise InvalidOption("tls_client_auth_policy", policy, "it must be require or require-verify")
        # Empty is what NSQ's example of a config file has.
        object.__setattr__(self, "tls_min_version", self.tls_min_version.lower() or _LEAST_TLS_VERSION)
        if self.tls_min_version not in TLS_VERSIONS:
            reason = f"it must be one of {', '.join(TLS_VERSIONS)}: Python's ssl does not speak older ones"
            raise InvalidOption("tls_min_version", self.tls_min_version, reason)
        if policy and required == "false":
            required = "true"
        object.__setattr__(self, "tls_required", required)
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise InvalidOption(given, getattr(self, given), f"failed to build TLS config - {missing} is missing")
        if required != "false" and not self.tls_cert:
            reason = "cannot require TLS client connections without TLS key and cert"
            raise InvalidOption("tls_required", required, reason)
        if policy == "require" and not self.tls_root_ca_file:
            reason = "Python's ssl takes no certificate that it cannot verify: tls_root_ca_file must say who signs them"
            raise InvalidOption("tls_client_auth_policy", policy, reason)


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
    #: What the daemon's process logs; "debug", "info", "warn", "error" or "fatal".
    log_level: str = "info"
    #: What each line of that begins with.
    log_prefix: str = "[nsqlookupd] "

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", _log_level(self.log_level))
