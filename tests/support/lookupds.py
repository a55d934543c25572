"""A scripted nsqlookupd."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import parse_qs

from gevent.event import Event
from gevent.pywsgi import WSGIServer

#: A Reader's options for discovery without delay.
FAST: dict[str, Any] = {"lookupd_poll_interval": 0.2, "lookupd_poll_jitter": 0.0}

#: A WSGI application.
Answer = Callable[[dict[str, Any], Any], Any]


class Listed(Protocol):
    @property
    def address(self) -> str: ...


class Asked(NamedTuple):
    """One request."""

    at: float
    path: str
    query: dict[str, list[str]]
    environ: dict[str, Any]


class Lookupd:
    """A nsqlookupd whose answer the test sets: a list of nsqds, or a function of (environ, start_response)."""

    def __init__(self) -> None:
        self.nsqds: list[Listed] = []
        self.answer: Answer = self.lookup
        self.asked: list[Asked] = []
        self.server = WSGIServer(("127.0.0.1", 0), lambda *call: self.answer(*call), log=None, error_log=None)

    def lookup(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        asked = Asked(time.monotonic(), environ["PATH_INFO"], parse_qs(environ["QUERY_STRING"]), environ)
        self.asked.append(asked)
        producers = [
            {
                "broadcast_address": nsqd.address.rpartition(":")[0].strip("[]"),
                "hostname": "h",
                "remote_address": "127.0.0.1:1",
                "tcp_port": int(nsqd.address.rpartition(":")[2]),
                "http_port": 1,
                "version": "1.3.0",
            }
            for nsqd in self.nsqds
        ]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"channels": [], "producers": producers}).encode()]

    def answer_after(self, release: Event) -> None:
        """Be mute until then."""

        def answer(environ: dict[str, Any], start_response: Any) -> list[bytes]:
            release.wait()
            return self.lookup(environ, start_response)

        self.answer = answer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(timeout=1)
