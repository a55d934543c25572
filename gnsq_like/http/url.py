"""Addresses of HTTP APIs: "host:port", or a URL, perhaps with a path and credentials.

The credentials are removed here, so that no log and no error elsewhere can show them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from gnsq_like.addresses import one_or_several, parse_address
from gnsq_like.errors import InvalidAddress

_DEFAULT_PORTS = {"http": 80, "https": 443}
#: Characters that would end the address early, or that other parsers read differently.
_NOT_IN_AN_ADDRESS = re.compile(r"[\x00-\x20\x7f?#\\]")

_FORMS = '"host:port", "[ipv6]:port" or "http(s)://host:port/path"'


@dataclass(frozen=True)
class BaseURL:
    """The URL of an API."""

    #: Scheme, host, port and path, without credentials and without a slash at the end.
    url: str
    #: The Authorization header for the address's user and password.
    authorization: str | None = field(default=None, repr=False)


def parse_base_url(address: str) -> BaseURL:
    """The URL below which an API lies.

    :param address: "host:port", "[ipv6]:port", or "http(s)://[user:password@]host[:port][/path]"; special
        characters in user, password and path are percent-encoded
    :raises InvalidAddress: for anything else; its text holds no credentials
    """
    if not isinstance(address, str):
        raise InvalidAddress(f"<{type(address).__name__}>", f"it is of type {type(address).__name__}, not str", _FORMS)
    visible = shown(address)
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "http", address
    scheme = scheme.lower()
    if scheme not in _DEFAULT_PORTS:
        raise InvalidAddress(visible, "the scheme must be http or https", _FORMS)
    if _NOT_IN_AN_ADDRESS.search(rest):
        raise InvalidAddress(visible, "it must not contain blanks, ?, # or \\", _FORMS)
    authority, _, path = rest.partition("/")
    # Otherwise the part of a password after a slash would be taken for a path, and shown.
    if "@" in path:
        raise InvalidAddress(
            visible, "an @ in the path, and an @ or / in the password, must be percent-encoded", _FORMS
        )
    userinfo, at, host_port = authority.rpartition("@")
    if separator and not re.search(r":[^\]]*$", host_port):
        host_port += f":{_DEFAULT_PORTS[scheme]}"
    try:
        where = parse_address(host_port)
    except InvalidAddress as exc:
        raise InvalidAddress(visible, exc.reason, _FORMS) from None
    if where.path:
        raise InvalidAddress(visible, "HTTP over a unix socket is not supported", _FORMS)
    path = path.rstrip("/")
    return BaseURL(f"{scheme}://{where}" + (f"/{path}" if path else ""), _basic(userinfo) if at else None)


def check_addresses(given: str | Iterable[str]) -> list[str]:
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
