"""Addresses: "host:port", "[ipv6]:port" or "unix:/path"; the one parser for client and daemons.

As for NSQ's daemons, "unix:" may be left out of a path that has a "/" or ends in ".sock", and has no colon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gnsq_like.errors import InvalidAddress


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
    return tuple(dict.fromkeys(parse_address(address) for address in one_or_several(addresses)))


def one_or_several(given: str | Iterable[str]) -> list[str]:
    """A list of one address, or of an iterable of addresses; unchecked."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
