"""Who makes a request, and whether that user may change something.

A user is known by the password file, or by a header that a trusted proxy sets. nsqadmin believes that header from
everybody, so there whoever reaches the port is an administrator.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass

from flask import Request
from werkzeug.security import check_password_hash, generate_password_hash

from gnsq_like.admin.options import UNIX, AdminOptions, read_network
from gnsq_like.errors import InvalidOption

#: Checked passwords that are remembered, so that not every request costs a hash of 50 ms.
_MOST_REMEMBERED = 1024


@dataclass(frozen=True)
class Identity:
    """The user of a request."""

    #: Empty if unknown.
    user: str
    may_write: bool
    #: False if a password is required, and this request has none that is right.
    is_authenticated: bool = True


class Identities:
    """Tells users by the options.

    :raises InvalidOption: if the password file cannot be read
    """

    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        self._passwords = read_passwords(options.password_file) if options.password_file else None
        self._networks = [read_network("trusted_proxies", each) for each in options.trusted_proxies if each != UNIX]
        #: Digests of right credentials, by a key that only this process has.
        self._right: set[bytes] = set()
        self._key = os.urandom(32)

    def of(self, request: Request) -> Identity:
        """The user of a request."""
        user, password = basic_credentials(request)
        if self._passwords is not None:
            if not self._is_right(self._passwords, user, password):
                return Identity("", False, is_authenticated=False)
        elif self.is_trusted(request.remote_addr or ""):
            user = request.headers.get(self._options.acl_http_header, "")
        else:
            user = ""
        admins = self._options.admin_users
        return Identity(user, not self._options.read_only and (not admins or user in admins))

    def is_trusted(self, address: str) -> bool:
        """Whether an address is that of a trusted proxy."""
        if not address:
            return UNIX in self._options.trusted_proxies
        return is_within(address, self._networks)

    def _is_right(self, passwords: Mapping[str, str], user: str, password: str) -> bool:
        digest = hmac.new(self._key, f"{user}:{password}".encode(), hashlib.sha256).digest()
        if digest in self._right:
            return True
        # For an unknown user the time is the same.
        if not check_password_hash(passwords.get(user, _NOBODY), password) or user not in passwords:
            return False
        if len(self._right) >= _MOST_REMEMBERED:
            self._right.clear()
        self._right.add(digest)
        return True


_NOBODY = generate_password_hash("nobody has this password")


def basic_credentials(request: Request) -> tuple[str, str]:
    """User and password of basic authorization; empty if there is none."""
    scheme, _, coded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, colon, password = base64.b64decode(coded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return (user, password) if colon else ("", "")


def is_within(address: str, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    """Whether an address is in one of these networks; an IPv4 one may be written as IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or found
    return any(each in network for network in networks for each in (found, mapped) if each.version == network.version)


def read_passwords(path: str) -> dict[str, str]:
    """The hashes in a password file, by user: a line is ``user:hash``; # begins a comment.

    :raises InvalidOption: if the file cannot be read, or has a line that is none
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidOption("password_file", path, f"it cannot be read: {exc}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, hashed = line.strip().partition(":")
        if not user or not hashed.startswith(("scrypt:", "pbkdf2:")):
            raise InvalidOption(
                "password_file", path, f"line {number} is not user:hash as gnsq-like admin-password writes"
            )
        found[user] = hashed
    return found


def password_line(user: str, password: str) -> str:
    """A line for the password file. Raises InvalidOption for a user that it cannot hold."""
    if not user or ":" in user or "#" in user or not user.isprintable() or user != user.strip():
        raise InvalidOption("user", user, "it must be printable, without : and #")
    return f"{user}:{generate_password_hash(password)}"
