"""The admin's options: nsqadmin's flags in snake case, with its defaults (docs/internals 7.3), and some of our own.

As for the daemons, the default address is the loopback one. Durations are in seconds.
"""

from __future__ import annotations

import ipaddress
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidOption
from gnsq_like.http.url import check_addresses

LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")

#: The peer of a unix socket, in ``trusted_proxies``.
UNIX = "unix"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class AdminOptions:
    """Options of the admin."""

    #: "host:port" (port 0: any free one), "[ipv6]:port" or "unix:/path".
    http_address: str = "127.0.0.1:4171"
    #: The same over TLS, besides, with its certificate and key as PEM files; empty for none.
    https_address: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    #: The path below which everything is.
    base_path: str = "/"
    #: The cluster: either nsqlookupds or nsqds.
    lookupd_http_addresses: tuple[str, ...] = ()
    nsqd_http_addresses: tuple[str, ...] = ()
    #: Further clusters by name: addresses of nsqlookupds, or of nsqds after "nsqd:".
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    #: Spark pipelines whose status is shown, by name: the address of each one's ``http_address``.
    pipelines: Mapping[str, str] = field(default_factory=dict)

    #: Users that may change something; empty: everybody may.
    admin_users: tuple[str, ...] = ()
    #: The header that names the user, believed from trusted_proxies only.
    acl_http_header: str = "X-Forwarded-User"
    #: Addresses and networks of proxies; "unix" for the peer of a unix socket.
    trusted_proxies: tuple[str, ...] = ("127.0.0.0/8", "::1", UNIX)
    #: Names by which browsers reach the admin, besides IP addresses, localhost and this host's name. ".example.com"
    #: stands for all below it, "*" for any.
    allowed_hosts: tuple[str, ...] = ()
    #: Whether nothing may be changed.
    read_only: bool = False
    #: File of users and password hashes; empty: no passwords.
    password_file: str = ""
    #: The network that may use /config; empty: any.
    allow_config_from_cidr: str = "127.0.0.1/8"

    http_client_connect_timeout: float = 2.0
    #: For one page or API request: all upstreams together.
    http_client_request_timeout: float = 5.0
    http_client_tls_insecure_skip_verify: bool = False
    #: PEM files.
    http_client_tls_root_ca_file: str = ""
    http_client_tls_cert: str = ""
    http_client_tls_key: str = ""

    #: For looking at messages, over the nsqds' TCP port: whether to connect with TLS, files as above, and the secret
    #: for nsqds that require AUTH.
    nsqd_tls_v1: bool = False
    nsqd_tls_insecure_skip_verify: bool = False
    nsqd_tls_root_ca_file: str = ""
    nsqd_tls_cert: str = ""
    nsqd_tls_key: str = ""
    nsqd_auth_secret: str = field(default="", repr=False)

    #: URL that gets a POST after each action.
    notification_http_endpoint: str = ""
    #: File to which each action is appended as a line of JSON; "-" for the log.
    audit_log: str = ""
    #: URLs that get a POST when an alert begins or ends.
    alert_webhooks: tuple[str, ...] = ()
    #: Depth of a channel that is an alert; 0 for none.
    alert_depth: int = 0

    #: Whether figures are kept for graphs, which polls the cluster every 10 s.
    history: bool = True
    #: SQLite file in which they outlive the process; empty: memory only.
    history_file: str = ""
    #: Topics and channels for which they are kept, at about 36 KB each.
    history_series: int = 5000
    #: Whether message bodies may be looked at.
    peek: bool = True
    #: Topics with these endings hold dead letters.
    dead_letter_suffixes: tuple[str, ...] = (".dead", "_dead", "-dead", ".dlq", "_dlq", "-dlq")

    #: URL of Graphite, for its graphs beside our own.
    graphite_url: str = ""
    #: Whether browsers get Graphite's graphs through the admin.
    proxy_graphite: bool = False
    statsd_prefix: str = "nsq.%s"
    statsd_counter_format: str = "stats.counters.%s.count"
    statsd_gauge_format: str = "stats.gauges.%s"
    statsd_interval: float = 60.0

    #: The least level that the process logs: "debug", "info", "warn", "error" or "fatal".
    log_level: str = "info"
    #: The beginning of each line of the log.
    log_prefix: str = "[nsqadmin] "

    def __post_init__(self) -> None:
        self._check_upstreams()
        self._check_access()
        for name in ("http_client_connect_timeout", "http_client_request_timeout", "statsd_interval"):
            if getattr(self, name) <= 0:
                raise InvalidOption(name, getattr(self, name), "it must be above 0")
        if self.log_level.lower() not in LOG_LEVELS:
            raise InvalidOption("log_level", self.log_level, f"it must be one of {', '.join(LOG_LEVELS)}")
        object.__setattr__(self, "log_level", self.log_level.lower())
        object.__setattr__(self, "base_path", _normal_path(self.base_path))
        for name in ("alert_depth", "history_series"):
            if getattr(self, name) < 0:
                raise InvalidOption(name, getattr(self, name), "it must not be negative")
        for url in (*self.alert_webhooks, *filter(None, [self.notification_http_endpoint, self.graphite_url])):
            if not url.startswith(("http://", "https://")):
                raise InvalidOption("URL", url, "it must begin with http:// or https://")

    def _check_upstreams(self) -> None:
        lookupds, nsqds = self.lookupd_http_addresses, self.nsqd_http_addresses
        if lookupds and nsqds:
            reason = "use --nsqd-http-address or --lookupd-http-address not both"
            raise InvalidOption("nsqd_http_addresses", nsqds, reason)
        if not (lookupds or nsqds or self.clusters):
            reason = "--nsqd-http-address or --lookupd-http-address required"
            raise InvalidOption("lookupd_http_addresses", lookupds, reason)
        check_addresses([*lookupds, *nsqds])
        for name, addresses in self.clusters.items():
            if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
                raise InvalidOption("clusters", name, "a name consists of letters, digits, - and _")
            check_addresses(split_kind(addresses)[1])
        for name, address in self.pipelines.items():
            if not (name.isprintable() and name.strip() == name != "" and len(name) <= 64):
                raise InvalidOption("pipelines", name, "a name is printable and has at most 64 characters")
            check_addresses(address)
        self._check_pair("http_client_tls")
        self._check_pair("nsqd_tls")
        self._check_pair("tls")

    def _check_pair(self, prefix: str) -> None:
        cert, key = getattr(self, f"{prefix}_cert"), getattr(self, f"{prefix}_key")
        if bool(cert) != bool(key):
            given, other = ("cert", "key") if cert else ("key", "cert")
            flag = f"--{prefix.replace('_', '-')}"
            raise InvalidOption(
                f"{prefix}_{given}", cert or key, f"{flag}-{other} must be specified with {flag}-{given}"
            )

    @property
    def reader_options(self) -> dict[str, Any]:
        """Options of the Readers with which messages are looked at."""
        found: dict[str, Any] = {}
        if self.nsqd_tls_v1:
            found |= {"tls_v1": True, "verify": not self.nsqd_tls_insecure_skip_verify}
            files = {name: getattr(self, f"nsqd_{name}") for name in ("tls_root_ca_file", "tls_cert", "tls_key")}
            found |= {name: path for name, path in files.items() if path}
        if self.nsqd_auth_secret:
            found["auth_secret"] = self.nsqd_auth_secret
        return found

    def _check_access(self) -> None:
        parse_address(self.http_address, to_listen=True)
        if self.https_address:
            parse_address(self.https_address, to_listen=True)
        if bool(self.https_address) != bool(self.tls_cert):
            raise InvalidOption("https_address", self.https_address, "it needs --tls-cert, and that needs it")
        for each in self.trusted_proxies:
            if each != UNIX:
                read_network("trusted_proxies", each)
        if self.allow_config_from_cidr:
            read_network("allow_config_from_cidr", self.allow_config_from_cidr)


def read_network(option: str, text: str) -> Network:
    """An address or network, as 10.0.0.0/8. Raises InvalidOption."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as exc:
        raise InvalidOption(option, text, f"it is not an address or network such as 10.0.0.0/8: {exc}") from None


def split_kind(addresses: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Whether a further cluster's addresses are those of nsqds, and the addresses.

    :raises InvalidOption: if there are none, or some of both kinds
    """
    nsqds = [each.startswith("nsqd:") for each in addresses]
    if not addresses or any(nsqds) != all(nsqds):
        raise InvalidOption("clusters", addresses, "give addresses of nsqlookupds, or of nsqds after nsqd:")
    return nsqds[0], tuple(each.removeprefix("nsqd:") for each in addresses)


def _normal_path(path: str) -> str:
    normal = posixpath.normpath("/" + path.strip("/"))
    if any(char in normal for char in "<>?#%\\\"'") or not normal.isprintable() or normal.startswith("//"):
        raise InvalidOption("base_path", path, "it must be a plain path such as /nsq")
    return normal
