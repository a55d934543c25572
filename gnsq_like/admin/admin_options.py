"""The admin's options: nsqadmin's flags in snake case, with its defaults (docs/internals 7.3), and some of our own.

It listens on the loopback address by default, like the daemons. Durations are in seconds.
"""

from __future__ import annotations

import ipaddress
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_like.addresses import check_base_urls, parse_address, shown
from gnsq_like.errors import InvalidOption
from gnsq_like.server.daemon_options import make_tuples

LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")

#: The peer of a unix socket, in ``trusted_proxies``.
UNIX = "unix"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _option(
    text: str, default: object = None, *, factory: Callable[[], object] | None = None, secret: bool = False
) -> Any:
    """A field of an options class; ``text`` describes it in the reference and in the command's help."""
    if factory is not None:
        return field(default_factory=factory, metadata={"text": text})
    return field(default=default, repr=not secret, metadata={"text": text})


@dataclass(frozen=True)
class AdminOptions:
    """Options of the admin."""

    http_address: str = _option("<addr>:<port> or <path> to listen on; port 0 is any free one.", "127.0.0.1:4171")
    https_address: str = _option(
        "<addr>:<port> or <path> to listen on for HTTPS, besides; needs --tls-cert and --tls-key.", ""
    )
    tls_cert: str = _option("Path of the certificate for HTTPS, as PEM.", "")
    tls_key: str = _option("Path of its key, as PEM.", "")
    base_path: str = _option("Prefix of all paths.", "/")
    lookupd_http_addresses: tuple[str, ...] = _option("HTTP address of a nsqlookupd; may be given several times.", ())
    nsqd_http_addresses: tuple[str, ...] = _option(
        "HTTP address of an nsqd, instead of nsqlookupds; may be given several times.", ()
    )
    clusters: Mapping[str, tuple[str, ...]] = _option(
        "A further cluster: NAME=<nsqlookupd>,... or NAME=nsqd:<nsqd>,...; may be given several times.", factory=dict
    )

    admin_users: tuple[str, ...] = _option(
        "User that may change something; may be given several times; default: everybody.", ()
    )
    acl_http_header: str = _option(
        "Header that names the user, accepted only from --trusted-proxy.", "X-Forwarded-User"
    )
    trusted_proxies: tuple[str, ...] = _option(
        "Address or network whose acl-http-header is accepted, or unix; may be given several times.",
        ("127.0.0.0/8", "::1", UNIX),
    )
    allowed_hosts: tuple[str, ...] = _option(
        "Name by which browsers reach the admin, besides IP addresses, localhost and this host's; "
        ".example.com for all below it, * for any; may be given several times.",
        (),
    )
    read_only: bool = _option("Change nothing.", False)
    password_file: str = _option(
        "File of users and password hashes, written by gnsq-like admin-password; requires a password.", ""
    )
    allow_config_from_cidr: str = _option("Network that may use /config.", "127.0.0.1/8")

    http_client_connect_timeout: float = _option("For connecting to an nsqd or nsqlookupd.", 2.0)
    http_client_request_timeout: float = _option(
        "For one page or API request: all nsqds and nsqlookupds together.", 5.0
    )
    http_client_tls_insecure_skip_verify: bool = _option("Do not verify certificates of nsqds and nsqlookupds.", False)
    http_client_tls_root_ca_file: str = _option("Path of the CAs of nsqds and nsqlookupds over https, as PEM.", "")
    http_client_tls_cert: str = _option("Path of the client certificate for them, as PEM.", "")
    http_client_tls_key: str = _option("Path of its key, as PEM.", "")

    nsqd_tls_v1: bool = _option("Use TLS to nsqds when reading messages.", False)
    nsqd_tls_insecure_skip_verify: bool = _option("Do not verify nsqds' certificates there.", False)
    nsqd_tls_root_ca_file: str = _option("Path of the CAs of nsqds' certificates there, as PEM.", "")
    nsqd_tls_cert: str = _option("Path of the client certificate there, as PEM.", "")
    nsqd_tls_key: str = _option("Path of its key, as PEM.", "")
    nsqd_auth_secret: str = _option(
        "Secret there for nsqds that require AUTH; better in NSQ_AUTH_SECRET than on the command line.", "", secret=True
    )

    notification_http_endpoint: str = _option("URL to which each action is POSTed.", "")
    audit_log: str = _option("File to which each action is appended as a line of JSON; - for the log.", "")
    alert_depth: int = _option("Depth of a channel from which it is an alert; 0 for none.", 0)

    history: bool = _option("Keep figures for graphs, for which the cluster is asked every 10 s.", True)
    history_file: str = _option("SQLite file in which the figures outlive the process.", "")
    history_series: int = _option("Topics and channels for which figures are kept, at up to 36 KB each.", 5000)
    peek: bool = _option("Let users look at messages.", True)
    dead_letter_suffixes: tuple[str, ...] = _option(
        "Ending of topics that hold dead letters; may be given several times.",
        (".dead", "_dead", "-dead", ".dlq", "_dlq", "-dlq"),
    )

    log_level: str = _option("Lowest level to log: debug, info, warn, error or fatal.", "info")
    log_prefix: str = _option("Beginning of each line of the log.", "[nsqadmin] ")

    def __post_init__(self) -> None:
        make_tuples(self)
        self._check_upstreams()
        self._check_access()
        for name in ("http_client_connect_timeout", "http_client_request_timeout"):
            if getattr(self, name) <= 0:
                raise InvalidOption(name, getattr(self, name), "it must be above 0")
        if self.log_level.lower() not in LOG_LEVELS:
            raise InvalidOption("log_level", self.log_level, f"it must be one of {', '.join(LOG_LEVELS)}")
        object.__setattr__(self, "log_level", self.log_level.lower())
        object.__setattr__(self, "base_path", _normal_path(self.base_path))
        for name in ("alert_depth", "history_series"):
            if getattr(self, name) < 0:
                raise InvalidOption(name, getattr(self, name), "it must not be negative")
        if (url := self.notification_http_endpoint) and not url.startswith(("http://", "https://")):
            raise InvalidOption("URL", url, "it must begin with http:// or https://")

    def _check_upstreams(self) -> None:
        lookupds, nsqds = self.lookupd_http_addresses, self.nsqd_http_addresses
        if lookupds and nsqds:
            reason = "use --nsqd-http-address or --lookupd-http-address not both"
            raise InvalidOption("nsqd_http_addresses", tuple(map(shown, nsqds)), reason)
        if not (lookupds or nsqds or self.clusters):
            reason = "--nsqd-http-address or --lookupd-http-address required"
            raise InvalidOption("lookupd_http_addresses", lookupds, reason)
        check_base_urls([*lookupds, *nsqds])
        for name, addresses in self.clusters.items():
            if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
                raise InvalidOption("clusters", name, "a name consists of letters, digits, - and _")
            check_base_urls(split_kind(addresses)[1])
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
    def reader_options(self) -> dict[str, object]:
        """Options of the Readers that take messages for the pages."""
        found: dict[str, object] = {}
        if self.nsqd_tls_v1:
            found |= {"tls_v1": True, "verify": not self.nsqd_tls_insecure_skip_verify}
            files = {name: getattr(self, f"nsqd_{name}") for name in ("tls_root_ca_file", "tls_cert", "tls_key")}
            found |= {name: path for name, path in files.items() if path}
        if self.nsqd_auth_secret:
            found["auth_secret"] = self.nsqd_auth_secret
        return found

    def is_dead_letter(self, topic: str) -> bool:
        """Whether a topic holds dead letters, by its name."""
        return topic.removesuffix("#ephemeral").endswith(self.dead_letter_suffixes)

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
    """Split a further cluster's addresses: whether they are those of nsqds, and the list.

    :raises InvalidOption: if there are none, or some of both kinds
    """
    nsqds = [each.startswith("nsqd:") for each in addresses]
    if not addresses or any(nsqds) != all(nsqds):
        raise InvalidOption(
            "clusters", tuple(map(shown, addresses)), "give addresses of nsqlookupds, or of nsqds after nsqd:"
        )
    return nsqds[0], tuple(each.removeprefix("nsqd:") for each in addresses)


def _normal_path(path: str) -> str:
    normal = posixpath.normpath("/" + path.strip("/"))
    if any(char in normal for char in "<>?#%\\\"'") or not normal.isprintable() or normal.startswith("//"):
        raise InvalidOption("base_path", path, "it must be a plain path such as /nsq")
    return normal
