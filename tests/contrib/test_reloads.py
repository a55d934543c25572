"""Flask and Django in gunicorn and uvicorn, traced, with readers in the workers, while the workers are replaced.

``GNSQ_LIKE_REQUESTS=10000 pytest tests/contrib/test_reloads.py -m servers`` is the full one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Kind, running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.reloading import PATIENCE, REQUESTS, WORKERS, Reloads
from tests.support.web import CONF, UP, Server, gunicorn, running
from tests.support.worker_kinds import GTHREAD

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900 + REQUESTS)]

Serve = Callable[..., AbstractContextManager[Server]]

FLASK = "tests.support.traced_app"


@pytest.fixture(params=["flask", "django"])
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


@pytest.mark.parametrize("worker", ["gevent", GTHREAD, "uvicorn"])
@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
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
