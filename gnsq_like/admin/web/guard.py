"""The first checks of a request: its Host and, if it changes something, its origin and token; and the headers that tell
browsers what our pages may do.

- Host: a page of another site may have its name resolved to this address (DNS rebinding), and its scripts would then
  read everything. Only expected names are answered.
- Origin and Sec-Fetch-Site: browsers say which site makes them send a request. One that changes something must come
  from this site. Programs such as curl send neither, and need neither: no other site can use their credentials.
- A token in each form, which must equal a cookie that other sites can neither read nor send.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
from urllib.parse import urlsplit

from flask import Request, Response

from gnsq_like.addresses import parse_address
from gnsq_like.admin.admin_options import AdminOptions
from gnsq_like.httpd.host_header import host_of, is_ip

TOKEN_COOKIE = "nsq_admin_token"
TOKEN_FIELD = "token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_SAME_SITE = ("same-origin", "none")

#: Everything comes from this server, nothing is inline, and no other page may frame this one.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Guard:
    """The checks, by the options."""

    def __init__(self, options: AdminOptions) -> None:
        name = socket.gethostname().lower()
        self._names = {"localhost", name, name.partition(".")[0]}
        for address in filter(None, (options.http_address, options.https_address)):
            if host := parse_address(address, to_listen=True).host:
                self._names.add(host.lower())
        self._given = tuple(each.lower() for each in options.allowed_hosts)
        self._headers = {
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    def is_host_right(self, request: Request) -> bool:
        """Whether the Host is one of ours: an IP address, this host's name, or a name that was allowed."""
        host = host_of(request.headers.get("Host", ""))
        return host is not None and ("*" in self._given or is_ip(host) or host in self._names or self._is_given(host))

    def _is_given(self, host: str) -> bool:
        return any(host == each or (each.startswith(".") and host.endswith(each)) for each in self._given)

    def is_same_site(self, request: Request) -> bool:
        """Whether a changing request comes from this site, or from no browser."""
        if request.headers.get("Sec-Fetch-Site", "none") not in _SAME_SITE:
            return False
        origin = request.headers.get("Origin")
        if origin is None:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.netloc:
            return False
        # A proxy may have changed the Host, but not the names that were allowed.
        return parts.netloc.lower() == request.headers.get("Host", "").lower() or self._is_given(parts.hostname or "")

    def token(self, request: Request) -> str:
        """The token of this browser, which a form must send; a new one for a new browser."""
        token = request.cookies.get(TOKEN_COOKIE, "")
        return token if _TOKEN.fullmatch(token) else secrets.token_urlsafe(32)

    def has_token(self, request: Request) -> bool:
        """Whether a form has sent the token of its browser."""
        token = request.cookies.get(TOKEN_COOKIE, "")
        sent = request.form.get(TOKEN_FIELD, "")
        return _TOKEN.fullmatch(token) is not None and hmac.compare_digest(token.encode(), sent.encode())

    def set_token(self, response: Response, token: str, path: str, *, secure: bool) -> None:
        """Give the browser its token."""
        response.set_cookie(TOKEN_COOKIE, token, path=path, httponly=True, samesite="Strict", secure=secure)

    def set_headers(self, response: Response) -> None:
        """Headers that every response has for the browser."""
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
