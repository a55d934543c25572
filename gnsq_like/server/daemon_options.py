"""The daemons' options: NSQ's flags in snake case, with NSQ's defaults (docs/internals 7), durations in seconds.

One default differs from NSQ's: the daemons listen on the loopback address. Flags without an effect here are
left out.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from gnsq_like.addresses import one_or_several, parse_address
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

#: The values of enable_experiment.
TOPOLOGY_AWARE_CONSUMPTION = "topology-aware-consumption"
_EXPERIMENTS = (TOPOLOGY_AWARE_CONSUMPTION,)

#: The values of tls_min_version, with the version's number in TLS.
TLS_VERSIONS = {"tls1.2": 0x0303, "tls1.3": 0x0304}
_LEAST_TLS_VERSION = "tls1.2"
TLS_REQUIRED = ("false", "tcp-https", "true")
_CLIENT_AUTH_POLICIES = ("", "require", "require-verify")

#: The minimum of some options.
_LEAST = {"mem_queue_size": 0, "max_bytes_per_file": 1, "sync_every": 1, "sync_timeout": 0.001}

#: A node id is 10 bits of a message id (docs/internals 1.15).
MAX_NODE_ID = 1024


def version_line(name: str) -> str:
    """The line with a daemon's version, as NSQ's prints it; programs parse it."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{name} v{VERSION} (built w/python{python})"


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


def make_tuples(options: Any) -> None:
    """For the options of a daemon, a dataclass, as it is made: one value becomes a tuple where several may be given.

    Empty texts are dropped: those of variables that are not set.
    """
    for option in fields(options):
        if isinstance(option.default, tuple):
            given = one_or_several(getattr(options, option.name))
            object.__setattr__(options, option.name, tuple(each for each in given if each != ""))


def _option(text: str, default: object = None, *, factory: Callable[[], object] | None = None) -> Any:
    """A field of an options class; ``text`` describes it in the reference and in the command's help."""
    if factory is not None:
        return field(default_factory=factory, metadata={"text": text})
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True)
class NsqdOptions:
    """Options of an nsqd."""

    tcp_address: str = _option(
        "<addr>:<port> or <path> to listen on for TCP clients; port 0 is any free one.", "127.0.0.1:4150"
    )
    http_address: str = _option(
        "<addr>:<port> or <path> to listen on for HTTP clients; empty for no HTTP.", "127.0.0.1:4151"
    )
    https_address: str = _option(
        "<addr>:<port> to listen on for HTTPS clients, if there is a certificate.", "127.0.0.1:4152"
    )
    broadcast_address: str = _option("Address that clients are told to use; default: the one listened on.", "")
    broadcast_tcp_port: int = _option("TCP port that clients are told to use; 0: the one listened on.", 0)
    broadcast_http_port: int = _option("HTTP port that clients are told to use; 0: the one listened on.", 0)
    lookupd_tcp_addresses: tuple[str, ...] = _option(
        "TCP address of a nsqlookupd to register with; may be given several times.", ()
    )
    auth_http_addresses: tuple[str, ...] = _option(
        "<addr>:<port> or full URL of an auth server; may be given several times.", ()
    )
    auth_http_request_method: str = _option(
        "get or post: how auth servers are asked. With post, the secret is in the body and in no URL.", "get"
    )
    http_client_connect_timeout: float = _option(
        "For connecting to an auth server or the HTTP API of a nsqlookupd.", 2.0
    )
    http_client_request_timeout: float = _option(
        "For the whole answer of an auth server or of a nsqlookupd's HTTP API.", 5.0
    )
    topology_region: str = _option("The region that this nsqd is in, which has one or more zones.", "")
    topology_zone: str = _option("The zone that this nsqd is in, as a data center.", "")
    node_id: int = _option(
        "Unique part of message ids, 0 to 1023; default: derived from the host name.", factory=default_node_id
    )
    data_path: str = _option(
        "Directory for messages that do not fit in memory and, when the daemon stops, for all "
        "messages and the names of topics and channels; empty: memory only.",
        "",
    )
    mem_queue_size: int = _option(
        "Messages that a topic or channel keeps in memory; further ones go to disk, or are dropped if "
        "it is ephemeral. Without a data_path, a durable one keeps any number.",
        10000,
    )
    max_bytes_per_file: int = _option("Largest file of messages on disk, in bytes.", 100 * 1024 * 1024)
    sync_every: int = _option("Messages after which a queue is synced to disk.", 2500)
    sync_timeout: float = _option("Time after which a queue is synced to disk anyway.", 2.0)
    msg_timeout: float = _option("Time until an unanswered message is delivered again.", 60.0)
    max_msg_timeout: float = _option("Longest time for which a client may keep a message by touching it.", 900.0)
    max_msg_size: int = _option("Largest message in bytes.", 1024 * 1024)
    max_body_size: int = _option("Largest command body in bytes.", 5 * 1024 * 1024)
    max_req_timeout: float = _option("Longest delay of a requeued or deferred message.", 3600.0)
    max_heartbeat_interval: float = _option("Longest time between heartbeats that a client may ask for.", 60.0)
    max_rdy_count: int = _option("Largest RDY count.", 2500)
    max_output_buffer_size: int = _option("Largest output buffer that a client may ask for, in bytes.", 64 * 1024)
    max_output_buffer_timeout: float = _option("Longest output buffer timeout that a client may ask for.", 30.0)
    min_output_buffer_timeout: float = _option("Shortest output buffer timeout that a client may ask for.", 0.025)
    output_buffer_timeout: float = _option("Time for which messages may wait in the output buffer.", 0.25)
    max_channel_consumers: int = _option("Consumers that a channel may have; 0: any number.", 0)
    tls_cert: str = _option("Path of the certificate, as PEM.", "")
    tls_key: str = _option("Path of its key, as PEM.", "")
    tls_root_ca_file: str = _option(
        "Path of the CAs that sign client certificates and those of auth servers, as PEM.", ""
    )
    tls_client_auth_policy: str = _option(
        "require or require-verify: only clients with a certificate, which also requires TLS. Both "
        "verify it, because Python's ssl rejects one that it cannot verify: require needs "
        "tls_root_ca_file.",
        "",
    )
    tls_required: str = _option(
        "Refuse clients without TLS: true, false, or tcp-https, which leaves plain HTTP open.", "false"
    )
    tls_min_version: str = _option(
        "Lowest version of TLS: tls1.2 or tls1.3 (Python's OpenSSL has none below).", _LEAST_TLS_VERSION
    )
    deflate: bool = _option("Let clients negotiate deflate.", True)
    max_deflate_level: int = _option("Highest level of deflate that a client may ask for, 1 to 9.", 6)
    snappy: bool = _option("Let clients negotiate snappy.", True)
    e2e_processing_latency_percentiles: tuple[float, ...] = _option(
        "Percentile of the time from publishing to FIN, as 0.99; may be given several times, or "
        "several separated by commas.",
        (),
    )
    e2e_processing_latency_window_time: float = _option("Window over which the percentiles are computed.", 600.0)
    log_level: str = _option("Lowest level to log: debug, info, warn, error or fatal.", "info")
    log_prefix: str = _option("Beginning of each line of the log.", "[nsqd] ")
    enable_experiment: tuple[str, ...] = _option(
        "topology-aware-consumption: a message goes to a consumer in topology_zone if one is ready, else to one in "
        "topology_region, else to any; may be given several times.",
        (),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", _log_level(self.log_level))
        make_tuples(self)
        # As NSQ's shows them: sorted, and 1 for 1.0.
        shown = tuple(
            1 if each == 1 else each for each in sorted(self.e2e_processing_latency_percentiles, reverse=True)
        )
        object.__setattr__(self, "e2e_processing_latency_percentiles", shown)
        self._check_tls()
        if self.auth_http_request_method not in ("get", "post"):
            reason = "--auth-http-request-method must be post or get"
            raise InvalidOption("auth_http_request_method", self.auth_http_request_method, reason)
        for experiment in self.enable_experiment:
            if experiment not in _EXPERIMENTS:
                raise InvalidOption("enable_experiment", experiment, f"the valid ones are {', '.join(_EXPERIMENTS)}")
        if not 1 <= self.max_deflate_level <= 9:
            raise InvalidOption("max_deflate_level", self.max_deflate_level, "--max-deflate-level must be [1,9]")
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) < least:
                raise InvalidOption(name, value, f"it must be at least {least}")
        for address in self.lookupd_tcp_addresses:
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

    tcp_address: str = _option(
        "<addr>:<port> or <path> to listen on for TCP clients; port 0 is any free one.", "127.0.0.1:4160"
    )
    http_address: str = _option(
        "<addr>:<port> or <path> to listen on for HTTP clients; empty for no HTTP.", "127.0.0.1:4161"
    )
    broadcast_address: str = _option("Address that clients are told to use; default: the one listened on.", "")
    inactive_producer_timeout: float = _option("Time without a ping after which an nsqd is left out of answers.", 300.0)
    tombstone_lifetime: float = _option("Time for which a tombstone hides a topic's nsqd.", 45.0)
    log_level: str = _option("Lowest level to log: debug, info, warn, error or fatal.", "info")
    log_prefix: str = _option("Beginning of each line of the log.", "[nsqlookupd] ")

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", _log_level(self.log_level))
