"""A nsqlookupd that lies: it answers with what an honest one says, or with something else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from gevent.event import Event

from tests.support.lookupds import Answer, Lookupd

#: Nobody listens there; a name that does not exist; an address that nobody answers for; and no address at all.
WRONG = [("127.0.0.1", 1), ("nowhere.invalid", 4150), ("192.0.2.1", 4150), ("a b", 4150)]
#: Bytes of an answer that is too long.
HUGE = 10 * 1024 * 1024


class Liar(Lookupd):
    """Honest until told otherwise."""

    @contextlib.contextmanager
    def lying(self, kind: str) -> Iterator[None]:
        """Answer in this way within the block."""
        over = Event()
        ways: dict[str, Answer] = {
            "wrong": self._with(
                json.dumps({"channels": [], "producers": [self._node(*each) for each in self._wrong()]})
            ),
            "empty": self._with('{"channels":[],"producers":[]}'),
            "garbage": self._with('{"producers":[{"tcp_port":"x"},7,null], "channels"'),
            "huge": self._with(b"[" * HUGE),
            "mute": lambda *call: self._after(over, *call),
            "error": self._with("no", "500 Internal Server Error"),
        }
        self.answer = ways[kind]
        try:
            yield
        finally:
            over.set()
            self.answer = self.lookup

    def _wrong(self) -> list[tuple[str, int]]:
        """Its own port among them: HTTP where NSQ's protocol is expected."""
        return [*WRONG, ("127.0.0.1", int(self.server.server_port))]

    @staticmethod
    def _node(host: str, port: int) -> dict[str, Any]:
        return {
            "broadcast_address": host,
            "hostname": "h",
            "remote_address": "127.0.0.1:1",
            "tcp_port": port,
            "http_port": 1,
            "version": "1.3.0",
        }

    @staticmethod
    def _with(body: str | bytes, status: str = "200 OK") -> Answer:
        data = body.encode() if isinstance(body, str) else body

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
            start_response(status, [("Content-Type", "application/json")])
            return [data]

        return answer

    def _after(self, over: Event, environ: dict[str, Any], start_response: Any) -> Any:
        over.wait()
        return self.lookup(environ, start_response)
