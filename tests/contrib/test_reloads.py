"""Flask and Django in gunicorn and uvicorn, traced, with readers in the workers, while the workers are replaced.

``GNSQ_LIKE_REQUESTS=10000 pytest tests/contrib/test_reloads.py -m servers`` is the full one.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Kind, Running, running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.spans import NotedSpan, noted_spans
from tests.support.web import CONF, GTHREAD, UP, Answers, Load, Server, gunicorn, running, wait_until_all_is_finished

# -- requests while a server's workers are replaced: nothing is lost, and each request, its publish and its handler are

#: Requests that are answered at least; ``GNSQ_LIKE_REQUESTS=10000`` for the full run.
REQUESTS = int(os.environ.get("GNSQ_LIKE_REQUESTS", "200"))
#: Reloads in each run.
RELOADS = max(1, REQUESTS // 1000)
#: Clients that send requests at once. They do so while new workers start, which is slow beside many.
CLIENTS = 20 if REQUESTS >= 1000 else 4
#: The workers of each server.
WORKERS = 2
#: Seconds for a reload, and for the end; the machine may do other things.
PATIENCE = 300.0


@dataclass
class Reloads:
    """A server whose workers publish to the topic ``orders``, and consume it.

    :param started: what a worker logs when it is at work
    :param ended: what it logs when it has ended
    """

    server: Server
    nsqd: Running
    started: str
    ended: str

    def run(self) -> Answers:
        """Send requests, and meanwhile replace all workers, one round after the other."""
        load = Load(CLIENTS, self.server.port, "orders")
        try:
            for number in range(RELOADS):
                share = REQUESTS * (number + 1) // (RELOADS + 1)
                wait_for(lambda: len(load.answers.ok) >= share, "requests", PATIENCE)  # noqa: B023
                self.server.process.send_signal(signal.SIGHUP)
                self._wait_until_reloaded(number + 1)
            wait_for(lambda: len(load.answers.ok) >= REQUESTS, "requests", PATIENCE)
        finally:
            answers = load.stop()
        # Readers that fell behind have much to do.
        wait_until_all_is_finished(self.nsqd, "orders", PATIENCE)
        return answers

    def _wait_until_reloaded(self, times: int) -> None:
        def is_reloaded() -> bool:
            log = self.server.log
            return log.count(self.started) >= WORKERS * (times + 1) and log.count(self.ended) >= WORKERS * times

        wait_for(is_reloaded, "the new workers", PATIENCE)

    def check(self, answers: Answers) -> str:
        """Each request that was answered was handled, in its trace. Returns the figures, in a line."""
        spans = noted_spans(self.server)
        requests = {span.subject: span for span in spans if span.name == "request"}
        children: defaultdict[int | None, list[NotedSpan]] = defaultdict(list)
        for span in spans:
            children[span.parent].append(span)
        handled = Counter(self.server.noted("booked"))
        assert len(answers.ok) == len(set(answers.ok)) >= REQUESTS
        assert set(requests) == set(answers.ok)
        assert set(handled) == set(answers.ok)
        elsewhere = 0
        for name, request in requests.items():
            [send] = [each for each in children[request.span] if each.name == "send orders"]
            handling = [each for each in children[send.span] if each.name == "process orders"]
            assert [each.subject for each in handling] == [name] * handled[str(name)]
            assert {each.trace for each in [send, *handling]} == {request.trace}
            elsewhere += handling[0].pid != request.pid
        return json.dumps(
            {
                "requests": len(answers.ok),
                "reloads": RELOADS,
                "workers": len({span.pid for span in spans}),
                "handled": handled.total(),
                "handled in another process": elsewhere,
                "connections closed before the request": len(answers.broken),
            }
        )


pytestmark = [pytest.mark.servers, pytest.mark.timeout(900 + REQUESTS)]

Serve = Callable[..., AbstractContextManager[Server]]

FLASK = "tests.contrib.traced_app"


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Which of the two, and the directory to serve it in."""
    return request.param, tmp_path if request.param == "flask" else Project.migrated(tmp_path / "project").path


def in_gunicorn(framework: str, path: Path, worker: str, **environment: str) -> AbstractContextManager[Server]:
    is_flask = framework == "flask"
    readers = "" if is_flask else '"gnsq_like.contrib.django:make_readers"'
    return gunicorn(
        path,
        *("-k", worker, "-w", str(WORKERS), "--threads", "8"),
        conf=CONF.replace("WorkerReaders()", f"WorkerReaders({readers})"),
        app=f"{FLASK}:create_app()" if is_flask else "wsgi:application",
        **environment,
    )


def in_uvicorn(framework: str, path: Path, **environment: str) -> AbstractContextManager[Server]:
    app = ["--factory", f"{FLASK}:create_asgi"] if framework == "flask" else ["asgi:with_its_readers"]
    flags = ["--port", "0", "--no-access-log", "--workers", str(WORKERS)]
    # A worker that does not answer its parent for so long is killed.
    patience = ["--timeout-worker-healthcheck", str(int(PATIENCE))]
    return running(
        ["-m", "uvicorn", *flags, *patience, *app],
        path,
        r"Uvicorn running on http://127\.0\.0\.1:(\d+)",
        **environment,
    )


@pytest.mark.parametrize(
    ("site", "worker", "kind"),
    [
        ("flask", "gevent", "ours"),
        pytest.param("django", *GTHREAD.values, "ours", marks=GTHREAD.marks),
        ("flask", "uvicorn", "ours"),
        pytest.param("django", "uvicorn", "real", marks=pytest.mark.real_nsqd),
        pytest.param("django", "gevent", "real", marks=pytest.mark.real_nsqd),
    ],
    indirect=["site"],
)
def test_nothing_is_lost_and_each_request_is_one_trace(
    site: tuple[str, Path], worker: str, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    is_uvicorn = worker == "uvicorn"
    with running_nsqd(kind) as nsqd:
        environment: dict[str, Any] = {
            "NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address,
            "NSQ_TRACING": "true",
            "NSQ_CLOUD_EVENTS": "orders",
        }
        with in_uvicorn(*site, **environment) if is_uvicorn else in_gunicorn(*site, worker, **environment) as server:
            started, ended = (
                ("Application startup complete", "Finished server process") if is_uvicorn else (UP, "Worker exiting")
            )
            wait_for(lambda: server.log.count(started) == WORKERS, "the workers", PATIENCE)
            reloads = Reloads(server, nsqd, started, ended)
            answers = reloads.run()
            assert (answers.other, answers.refused) == ([], [])
            # A uvicorn that stops closes connections whose request it has not read yet.
            assert is_uvicorn or answers.broken == []
            server.end()
            assert "Traceback" not in server.log or is_uvicorn
        figures = reloads.check(answers)
    with capsys.disabled():
        print(f"\n{site[0]}, {worker}, {kind}: {figures}")
