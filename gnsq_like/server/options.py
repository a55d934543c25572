"""The daemons' options: NSQ's flags in snake case, with NSQ's defaults (docs/internals 7), durations in seconds.

One default differs from NSQ's: the daemons listen on the loopback address. Flags without an effect here are
left out.
"""

from __future__ import annotations

import hashlib
import socket
import zlib
from dataclasses import dataclass, field

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidOption

#: The version of NSQ that the daemons report: clients enable features by it.
VERSION = "1.3.0"

#: Options with another name in NSQ's config file and /config (docs/internals 7).
_CONFIG_NAMES = {
    "node_id": "id",
    "lookupd_tcp_addresses": "nsqlookupd_tcp_addresses",
    "lookupd_http_addresses": "nsqlookupd_http_addresses",
}

#: NSQ's log levels, numbered from 1; in ``logging``, "warn" is WARNING and "fatal" is CRITICAL.
LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")

#: The values of tls_min_version, with the version's number in TLS.
TLS_VERSIONS = {"tls1.2": 0x0303, "tls1.3": 0x0304}
_LEAST_TLS_VERSION = "tls1.2"
TLS_REQUIRED = ("false", "tcp-https", "true")
_CLIENT_AUTH_POLICIES = ("", "require", "require-verify")

#: The minimum of some options.
_LEAST = {"mem_queue_size": 0, "max_bytes_per_file": 1, "sync_every": 1, "sync_timeout": 0.001}

#: A node id is 10 bits of a message id (docs/internals 1.15).
MAX_NODE_ID = 1024


def default_node_id(hostname: str | None = None) -> int:
    """The node id that nsqd derives from a host's name."""
    name = socket.gethostname() if hostname is None else hostname
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % MAX_NODE_ID


def config_name(option: str) -> str:
    """The name of an option in NSQ's config file and /config."""
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
    #: "host:port" for HTTP over TLS; used only with a tls_cert. Empty for no HTTPS.
    https_address: str = "127.0.0.1:4152"
    #: The host that nsqlookupds and /info report; empty for the host of tcp_address.
    broadcast_address: str = ""
    #: 0 for the port of tcp_address or http_address.
    broadcast_tcp_port: int = 0
    broadcast_http_port: int = 0
    lookupd_tcp_addresses: tuple[str, ...] = ()
    #: Auth servers, as "host:port" or URL, asked for the permissions of every client; empty for no AUTH.
    auth_http_addresses: tuple[str, ...] = ()
    #: Seconds for connecting to an auth server or a nsqlookupd's HTTP API, and for its whole response.
    http_client_connect_timeout: float = 2.0
    http_client_request_timeout: float = 5.0
    #: Part of every message id; different for each daemon of a cluster.
    node_id: int = field(default_factory=default_node_id)
    #: The directory for messages that do not fit in memory, and when the daemon stops, for all messages and the
    #: names of topics and channels. Empty for none: everything is in memory only.
    data_path: str = ""
    #: Messages that a topic or channel keeps in memory; more go to disk, or are dropped if it is ephemeral.
    #: Without a data_path, a durable one keeps any number.
    mem_queue_size: int = 10000
    #: The size in bytes at which the next file on disk begins.
    max_bytes_per_file: int = 100 * 1024 * 1024
    #: Messages written and read after which a queue is synced to disk, and seconds after which it is synced anyway.
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
    #: "require" or "require-verify" to accept only clients with certificates, which also requires TLS. Both verify
    #: here: Python's ssl rejects a certificate that it cannot verify, so "require" needs tls_root_ca_file.
    tls_client_auth_policy: str = ""
    #: Whether clients without TLS are refused: "false", "true", or "tcp-https", which still accepts plain HTTP.
    tls_required: str = "false"
    #: The minimum version. NSQ's default is tls1.0; Python's OpenSSL has none below 1.2 (see RFC 8996).
    tls_min_version: str = _LEAST_TLS_VERSION
    #: What clients may negotiate.
    deflate: bool = True
    max_deflate_level: int = 6
    snappy: bool = True
    #: "host:port" of a statsd to push to, by UDP; empty for none.
    statsd_address: str = ""
    #: The beginning of all names; "%s" stands for the broadcast address and the HTTP port.
    statsd_prefix: str = "nsq.%s"
    statsd_interval: float = 60.0
    statsd_mem_stats: bool = True
    #: Bytes of one packet.
    statsd_udp_packet_size: int = 508
    statsd_exclude_ephemeral: bool = False
    #: Percentiles of the time from publishing to FIN, in /stats: 0.99 for 99 %.
    e2e_processing_latency_percentiles: tuple[float, ...] = ()
    #: The window that they cover.
    e2e_processing_latency_window_time: float = 600.0
    #: The least level that the process logs: "debug", "info", "warn", "error" or "fatal".
    log_level: str = "info"
    #: The beginning of each line of the log.
    log_prefix: str = "[nsqd] "

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", _log_level(self.log_level))
        for name in ("lookupd_tcp_addresses", "auth_http_addresses"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, (given,))
        self._check_tls()
        if not 1 <= self.max_deflate_level <= 9:
            raise InvalidOption("max_deflate_level", self.max_deflate_level, "--max-deflate-level must be [1,9]")
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) < least:
                raise InvalidOption(name, value, f"it must be at least {least}")
        for address in (*self.lookupd_tcp_addresses, *filter(None, [self.statsd_address])):
            parse_address(address)
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
        # NSQ's example of a config file has an empty value.
        object.__setattr__(self, "tls_min_version", self.tls_min_version.lower() or _LEAST_TLS_VERSION)
        if self.tls_min_version not in TLS_VERSIONS:
            reason = f"it must be one of {', '.join(TLS_VERSIONS)}: Python's ssl has no older ones"
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
            reason = "Python's ssl rejects certificates that it cannot verify: give tls_root_ca_file, with their CAs"
            raise InvalidOption("tls_client_auth_policy", policy, reason)


@dataclass(frozen=True)
class NsqlookupdOptions:
    """Options of a nsqlookupd."""

    #: "host:port" (port 0: any free one), "[ipv6]:port" or "unix:/path".
    tcp_address: str = "127.0.0.1:4160"
    http_address: str = "127.0.0.1:4161"
    #: The host that nsqds are told; empty for the host of tcp_address.
    broadcast_address: str = ""
    #: Seconds without a PING after which a producer is left out of responses.
    inactive_producer_timeout: float = 300.0
    #: Seconds for which a tombstone hides a producer.
    tombstone_lifetime: float = 45.0
    #: The least level that the process logs: "debug", "info", "warn", "error" or "fatal".
    log_level: str = "info"
    #: The beginning of each line of the log.
    log_prefix: str = "[nsqlookupd] "

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", _log_level(self.log_level))
