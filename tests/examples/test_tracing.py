"""The examples with OpenTelemetry: what a request leads to is one trace, in all processes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gevent import socket

from tests.support.daemons import wait_for
from tests.support.web import ROOT, Server, running

pytestmark = [pytest.mark.commands, pytest.mark.timeout(900)]

#: Seconds; the machine may do other things.
PATIENCE = 300.0

#: As in the READMEs of the examples; and spans are printed at once.
TRACED = {
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "PYTHONUNBUFFERED": "1",
}


def ask(port: int, path: str, form: str = "", cookie: str = "") -> tuple[int, str]:
    """Status and text of the answer to a GET, or to a form, however late: the server may just be starting."""
    head = f"{'POST' if form else 'GET'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(form)}\r\n"
    head += f"Cookie: {cookie}\r\n" * bool(cookie)
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(f"{head}\r\n{form}".encode())
        while data := sock.recv(65536):
            answer += data
    return int(answer.split()[1]), answer.decode()


def spans(server: Server) -> list[dict[str, Any]]:
    """The spans in its log, complete ones only."""
    found = []
    for match in re.finditer(r"^\{\n.*?^\}$", server.log, re.DOTALL | re.MULTILINE):
        # Processes that write at once may mix their lines.
        try:
            found.append(json.loads(match[0]))
        except ValueError:
            continue
    return found


def trace_of(server: Server, name: str) -> set[str]:
    """The names of all spans in the trace of the only one with this name."""
    found = spans(server)
    traces = {span["context"]["trace_id"] for span in found if span["name"] == name}
    assert len(traces) <= 1
    return {span["name"] for span in found if span["context"]["trace_id"] in traces}


def test_a_click(tmp_path: Path) -> None:
    command = [str(ROOT / "examples/flask_clicks/run.py"), "0"]
    with running(command, tmp_path, r"http://127\.0\.0\.1:(\d+)", **TRACED) as server:
        wait_for(lambda: ask(server.port, "/healthz")[0] == 200, "the readers", PATIENCE)
        assert ask(server.port, "/click", "colour=mint&name=Ada")[0] == 204
        wait_for(lambda: trace_of(server, "POST /click") >= {"send clicks", "process clicks"}, "the spans", PATIENCE)
        assert server.end() == 0


def test_an_order(tmp_path: Path) -> None:
    command = [str(ROOT / "examples/django_shop/run.py"), "0"]
    database = str(tmp_path / "shop.sqlite3")
    with running(command, tmp_path, r"http://127\.0\.0\.1:(\d+)", SHOP_DATABASE=database, **TRACED) as server:
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', ask(server.port, "/")[1])
        assert token
        form = f"item=tea&count=1&customer=Ada&csrfmiddlewaretoken={token[1]}"
        assert ask(server.port, "/", form, f"csrftoken={token[1]}")[0] == 302
        wait_for(lambda: trace_of(server, "POST index") >= {"process orders", "process parcels"}, "the spans", PATIENCE)
        assert server.end() == 0
