"""The user of a request, and whether that user may change something.

Users are identified by the password file, or by a header that a trusted proxy sets. nsqadmin trusts that header from
any client, so anyone who reaches its port is an administrator.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import logging
import time
from dataclasses import dataclass

from flask import Request

from gnsq_like.admin.admin_options import UNIX, AdminOptions, read_network
from gnsq_like.admin.audit import AuditLog
from gnsq_like.admin.core import Core
from gnsq_like.admin.web.passwords import SESSION_COOKIE, Passwords, TooManyTries

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """The user of a request."""

    #: Empty if unknown.
    user: str
    may_write: bool
    #: False if a password is required, and this request lacks the right one.
    is_authenticated: bool = True
    #: Whether the password was right just now, so that the user gets a session.
    is_new: bool = False


class Identities:
    """Identifies users, as the options say.

    :param core: for hashes of passwords
    :param audit: where wrong passwords are recorded
    :raises InvalidOption: if the password file cannot be read
    """

    def __init__(self, options: AdminOptions, core: Core, audit: AuditLog) -> None:
        self._options = options
        self._audit = audit
        self.passwords = Passwords(options.password_file, core) if options.password_file else None
        self._networks = [read_network("trusted_proxies", each) for each in options.trusted_proxies if each != UNIX]

    def of(self, request: Request) -> Identity:
        """The user of a request. May switch, or block.

        :raises TooManyTries: if there were too many wrong passwords
        """
        user, is_new = "", False
        if self.passwords is not None:
            user, password = basic_credentials(request)
            known = self.passwords.user_of(request.cookies.get(SESSION_COOKIE, ""))
            if known is None or user not in ("", known):
                if not user:
                    return Identity("", False, is_authenticated=False)
                if not self._is_right(self.passwords, user, password, request):
                    return Identity("", False, is_authenticated=False)
                is_new = True
            else:
                user = known
        elif self.is_trusted(request.remote_addr or ""):
            user = request.headers.get(self._options.acl_http_header, "")
        admins = self._options.admin_users
        return Identity(user, not self._options.read_only and (not admins or user in admins), is_new=is_new)

    def _is_right(self, passwords: Passwords, user: str, password: str, request: Request) -> bool:
        address = request.remote_addr or ""
        if self.is_trusted(address):
            address = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()[:100] or address
        try:
            is_right = passwords.is_right(user, password, address)
        except TooManyTries as exc:
            if exc.is_first:
                self._record(user, address, "too many tries")
            raise
        if not is_right:
            self._record(user, address, "wrong password")
        return is_right

    def _record(self, user: str, address: str, why: str) -> None:
        logger.warning("log-in of %r from %s refused: %s", user[:100], address or UNIX, why)
        entry = {"action": "log_in", "topic": "", "timestamp": int(time.time()), "user": user[:100]}
        self._audit.add({**entry, "remote_ip": address, "result": "failed", "error": why})

    def is_trusted(self, address: str) -> bool:
        """Whether an address is that of a trusted proxy."""
        if not address:
            return UNIX in self._options.trusted_proxies
        return is_within(address, self._networks)


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
