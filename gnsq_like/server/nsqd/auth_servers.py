"""Asks auth servers about a client (docs/internals 1.4). The client's secret appears in no log and no error."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlencode, urlsplit

from gnsq_like.addresses import join_host_port, shown
from gnsq_like.errors import NSQError
from gnsq_like.http.client import HTTPClient
from gnsq_like.runtime.native import draw
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.server.nsqd.authorizations import Access, read_access
from gnsq_like.server.shared.gotext import read_object, to_json

if TYPE_CHECKING:
    from gnsq_like.http.exchange import Answer

#: Larger responses are rejected.
MAX_ANSWER_BYTES = 1024 * 1024


class AuthFailed(Exception):
    """No auth server gave a usable response; the text has the reason of each, for the log only."""


@dataclass(frozen=True)
class Applicant:
    """The client, as described to an auth server."""

    #: The name in its certificate, if it was asked for one.
    common_name: str
    #: Empty for a unix socket.
    remote_ip: str
    secret: bytes = field(repr=False)
    tls: bool

    def _fields(self) -> dict[str, str]:
        return {
            "common_name": self.common_name,
            "remote_ip": self.remote_ip,
            "secret": self.secret.decode(errors="surrogateescape"),
            "tls": str(self.tls).lower(),
        }

    def query(self) -> str:
        """The query string of a URL."""
        return urlencode(self._fields(), errors="surrogateescape")

    def body(self) -> bytes:
        """The body of a POST: a list for each field."""
        return to_json({name: [value] for name, value in self._fields().items()})


class _AuthServer(HTTPClient):
    _body_type = "application/json"

    def ask(self, method: str, path: str, applicant: Applicant) -> Answer:
        if method == "post":
            return self._fetch("POST", path, applicant.body())
        return self._fetch("GET", path, secret_query=applicant.query())


class AuthServers:
    """The auth servers of one nsqd.

    :param tls_context: for those that are asked over https
    :param random: a number from 0 to below 1
    """

    def __init__(self, options: NsqdOptions, tls_context: ssl.SSLContext, random: Callable[[], float] = draw) -> None:
        self._options = options
        self._addresses = options.auth_http_addresses
        self._tls_context = tls_context
        self._random = random

    def ask(self, applicant: Applicant) -> Access:
        """The first usable response, asking from a random server on. May switch.

        :raises AuthFailed: if no server gives one
        """
        start = int(self._random() * len(self._addresses))
        failures = []
        for address in self._addresses[start:] + self._addresses[:start]:
            try:
                return self._ask_one(address, applicant)
            except (NSQError, ValueError) as exc:
                failures.append(f"failed to auth against {shown(address)} - {getattr(exc, 'reason', exc)}")
        raise AuthFailed("; ".join(failures))

    def _ask_one(self, address: str, applicant: Applicant) -> Access:
        url = urlsplit(address if "://" in address else f"http://{address}/auth")
        answer = self._get(url, applicant)
        if answer.status == 403 and url.scheme != "https":
            port = read_object(answer.body).number("https_port")
            url = urlsplit(f"https://{join_host_port(url.hostname or '', port)}{url.path}")
            answer = self._get(url, applicant)
        if answer.status != 200:
            raise ValueError(f"got response {answer.status}")
        return read_access(answer.body)

    def _get(self, url: SplitResult, applicant: Applicant) -> Answer:
        with _AuthServer(
            f"{url.scheme}://{url.netloc}",
            self._options.http_client_request_timeout,
            connect_timeout=self._options.http_client_connect_timeout,
            verify=self._tls_context,
            max_answer_bytes=MAX_ANSWER_BYTES,
        ) as server:
            return server.ask(self._options.auth_http_request_method, url.path, applicant)
