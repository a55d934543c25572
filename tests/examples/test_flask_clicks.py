"""examples/flask_clicks, started by its one command: every click comes back in the stream of every worker."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket

from tests.support.daemons import wait_for
from tests.support.web import ROOT, get, running

pytestmark = pytest.mark.commands

COMMAND = [str(ROOT / "examples/flask_clicks/run.py"), "0"]


def post(port: int, form: str) -> int:
    """The status of a click."""
    head = f"POST /click HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {len(form)}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}".encode())
        return int(sock.recv(65536).split()[1])


class Page:
    """Listens to the stream, as an open page does."""

    def __init__(self, port: int) -> None:
        self.clicks: list[dict[str, Any]] = []
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._sock.sendall(b"GET /stream HTTP/1.1\r\nHost: test\r\n\r\n")
        self._greenlet = gevent.spawn(self._listen)

    def _listen(self) -> None:
        for line in self._sock.makefile("rb"):
            if line.startswith(b"data: "):
                self.clicks.append(json.loads(line.removeprefix(b"data: ")))

    def named(self, name: str) -> list[dict[str, Any]]:
        """The clicks with this name."""
        return [click for click in self.clicks if click["name"] == name]

    def close(self) -> None:
        self._greenlet.kill()
        self._sock.close()


def has_earlier(port: int, name: str) -> bool:
    """Whether a page that is opened now gets an earlier click with this name."""
    page = Page(port)
    try:
        # They come after the earlier one, if this worker has its channel; so few that they do not push it out.
        for _ in range(10):
            assert post(port, f"colour=plum&name=after-{name}") == 204
            gevent.sleep(0.1)
            if page.named(f"after-{name}"):
                return bool(page.named(name))
        return False
    finally:
        page.close()


def test_a_click_comes_to_the_pages_of_every_worker(tmp_path: Path) -> None:
    with running(COMMAND, tmp_path, r"http://127\.0\.0\.1:(\d+)", PYTHONUNBUFFERED="1") as server:
        status, html = get(server.port, "/")
        assert (status, "Clicks on Flask and NSQ" in html) == (200, True)
        pages = [Page(server.port) for _ in range(8)]
        try:
            # A worker that starts late misses the clicks before it has its channel.
            while not all(page.clicks for page in pages):
                assert post(server.port, "colour=plum") == 204
                gevent.sleep(0.1)
            assert post(server.port, "colour=none") == 400
            assert post(server.port, "colour=mint&name=Ada") == 204
            wait_for(lambda: all(page.named("Ada") for page in pages), "the click in every page", 30)
            assert [[each["colour"] for each in page.named("Ada")] for page in pages] == [["mint"]] * 8
            # All of the pages may be of one worker, and the other one have missed the click: the next one then.
            for name in (f"Ada-{number}" for number in count()):
                assert post(server.port, f"colour=mint&name={name}") == 204
                wait_for(lambda: all(page.named(name) for page in pages), "the click in every page", 30)  # noqa: B023
                if has_earlier(server.port, name):
                    break
            assert get(server.port, "/healthz")[0] == 200
        finally:
            for page in pages:
                page.close()
        assert server.end() == 0
        assert "Traceback" not in server.log
