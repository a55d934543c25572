"""An auth server for tests (docs/internals 1.4): the test says which secrets are good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

from gevent.pywsgi import WSGIServer


class AuthServer:
    """Knows secrets, and counts what it was asked."""

    def __init__(self) -> None:
        #: The good secrets, and whom they name.
        self.identities: dict[str, str] = {}
        #: The topics that are allowed.
        self.topics = ".*"
        #: Seconds for which nsqd may keep an answer.
        self.ttl = 3600
        #: Whether it says of a bad secret that nothing is allowed; else 403, which nsqd takes for no answer.
        self.allows_nothing = False
        #: The secrets that nsqd asked about, in order.
        self.asked: list[str] = []
        self._server = WSGIServer(("127.0.0.1", 0), self._answer, log=None)
        self._server.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def _answer(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        [secret] = parse_qs(environ["QUERY_STRING"])["secret"]
        self.asked.append(secret)
        identity = self.identities.get(secret)
        if identity is None and not self.allows_nothing:
            start_response("403 Forbidden", [])
            return [b"{}"]
        allowed = {"topic": self.topics, "channels": [".*"], "permissions": ["subscribe", "publish"]}
        answer = {
            "ttl": self.ttl,
            "identity": identity or "nobody",
            "identity_url": f"http://people.example/{identity}",
            "authorizations": [allowed] if identity else [],
        }
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]

    def close(self) -> None:
        self._server.stop(timeout=1)


@contextmanager
def running_auth_server(**identities: str) -> Iterator[AuthServer]:
    server = AuthServer()
    server.identities |= identities
    try:
        yield server
    finally:
        server.close()
