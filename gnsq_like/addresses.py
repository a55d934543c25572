"""Addresses: "host:port", "[ipv6]:port" or "unix:/path"; the one parser for client and daemons.

As for NSQ's daemons, "unix:" may be left out of a path that has a "/" or ends in ".sock", and has no colon.

Those of HTTP APIs may be URLs, with a path and credentials. The credentials are removed here, so that no log and no
error elsewhere can show them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

from gnsq_like.errors import InvalidAddress, InvalidOption

_DEFAULT_PORTS = {"http": 80, "https": 443}
#: Characters that would end a URL early, or that other parsers read differently.
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f?#\\]")
_URLS = '"host:port", "[ipv6]:port" or "http(s)://host:port/path"'


class Address(NamedTuple):
    """The address of a daemon: a host and a port, or the path of a unix socket."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return join_host_port(self.host, self.port)


def join_host_port(host: str, port: int) -> str:
    """``"host:port"``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str, *, to_listen: bool = False) -> Address:
    """Parse an address.

    :param to_listen: accept an empty host (all interfaces) and port 0 (any free port)
    :raises InvalidAddress: if it is malformed
    """
    if not isinstance(address, str):
        raise InvalidAddress(address, f"it is of type {type(address).__name__}, not str")
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path:
            raise InvalidAddress(address, "the path is missing")
        return Address("", 0, path)
    scheme, has_scheme, _ = address.partition("://")
    if has_scheme:
        raise InvalidAddress(address, f'a TCP address has no scheme: leave out "{scheme}://"')
    if "," in address:
        raise InvalidAddress(address, "several addresses must be a list of strings")
    if ":" not in address and ("/" in address or address.endswith(".sock")):
        return Address("", 0, address)
    host, separator, port_text = address.rpartition(":")
    if not separator or not (host or to_listen):
        raise InvalidAddress(address, "the host or the port is missing")
    if "/" in host or "@" in host or host != host.strip():
        raise InvalidAddress(address, "it has an invalid host name")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise InvalidAddress(address, "only an IPv6 address may be in brackets")
    elif ":" in host:
        raise InvalidAddress(address, "an IPv6 address must be in brackets")
    least = 0 if to_listen else 1
    if not (port_text.isascii() and port_text.isdigit() and least <= int(port_text) <= 65535):
        raise InvalidAddress(address, f"the port must be a number from {least} to 65535")
    return Address(host, int(port_text))


def parse_addresses(addresses: str | Iterable[str]) -> tuple[Address, ...]:
    """Parse one address or several; duplicates are dropped. Raises InvalidAddress."""
    return tuple(dict.fromkeys(map(parse_address, one_or_several(addresses))))


def parse_nsqds(nsqds: str | Iterable[str], lookupds: str | Iterable[str]) -> tuple[tuple[Address, ...], list[str]]:
    """The nsqds of a Reader or Producer, and the nsqlookupds that it asks for others; both checked.

    :raises InvalidAddress, InvalidOption: if one is malformed, or there are none
    """
    found = parse_addresses(nsqds), check_base_urls(lookupds)
    if not any(found):
        raise InvalidOption("nsqd_tcp_addresses", (), "set nsqd_tcp_addresses, lookupd_http_addresses, or both")
    return found


def one_or_several(given: str | Iterable[str]) -> list[str]:
    """A list of one address, or of an iterable of addresses; unchecked. Raises InvalidAddress for a host and a port."""
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
    if len(several) == 2 and isinstance(several[1], int):
        raise InvalidAddress(given, "a host and its port are one string", f'"{several[0]}:{several[1]}"')
    return several


def parse_base_url(address: str) -> tuple[str, str | None]:
    """The URL below which an HTTP API lies, without credentials and without a slash at the end.

    Beside it, the Authorization header for the address's user and password, or None.

    :param address: "host:port", "[ipv6]:port", or "http(s)://[user:password@]host[:port][/path]"; special
        characters in user, password and path are percent-encoded
    :raises InvalidAddress: for anything else; its text holds no credentials
    """
    if not isinstance(address, str):
        raise InvalidAddress(f"<{type(address).__name__}>", f"it is of type {type(address).__name__}, not str", _URLS)
    visible = shown(address)
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "http", address
    scheme = scheme.lower()
    if scheme not in _DEFAULT_PORTS:
        raise InvalidAddress(visible, "the scheme must be http or https", _URLS)
    if _NOT_IN_A_URL.search(rest):
        raise InvalidAddress(visible, "it must not contain blanks, ?, # or \\", _URLS)
    authority, _, path = rest.partition("/")
    # Otherwise the part of a password after a slash would be taken for a path, and shown.
    if "@" in path:
        raise InvalidAddress(visible, "an @ in the path, and an @ or / in the password, must be percent-encoded", _URLS)
    userinfo, at, host_port = authority.rpartition("@")
    if separator and not re.search(r":[^\]]*$", host_port):
        host_port += f":{_DEFAULT_PORTS[scheme]}"
    try:
        where = parse_address(host_port)
    except InvalidAddress as exc:
        raise InvalidAddress(visible, exc.reason, _URLS) from None
    if where.path:
        raise InvalidAddress(visible, "HTTP over a unix socket is not supported", _URLS)
    path = path.rstrip("/")
    return f"{scheme}://{where}" + (f"/{path}" if path else ""), _basic(userinfo) if at else None


def check_base_urls(given: str | Iterable[str]) -> list[str]:
    """One address or several, unchanged; raises InvalidAddress for one that :func:`parse_base_url` refuses."""
    addresses = one_or_several(given)
    for address in addresses:
        parse_base_url(address)
    return addresses


def shown(address: str) -> str:
    """An address as it is shown everywhere, also one that is invalid: without user and password."""
    before, at, after = address.rpartition("@")
    scheme, separator, _ = before.partition("://")
    return f"{scheme}://{after}" if at and separator else after


def _basic(userinfo: str) -> str:
    user, _, password = userinfo.partition(":")
    credentials = f"{unquote(user)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(credentials).decode('ascii')}"
