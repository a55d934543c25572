"""A site in gunicorn while its nsqd is killed, or stands still: only publishes fail, and at once.

``benchmarks/outage.py`` measures the same. Here the facts are counted, or the timeout of publishes is so long that a
request that waited for it would fail the test.
"""

import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Process, running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.web import Server, get, gunicorn, publish_from

pytestmark = pytest.mark.servers

Serve = Callable[..., AbstractContextManager[Server]]

FLAGS = ["-k", "gthread", "--threads", "8"]
#: More than the server has threads.
CLIENTS = 20


@pytest.fixture(params=["flask", "django"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Serve:
    """Serves the site with these settings."""

    def make(**environment: str) -> AbstractContextManager[Server]:
        if request.param == "flask":
            return gunicorn(tmp_path, *FLAGS, **environment)
        project = Project.migrated(tmp_path / "project")
        return gunicorn(project.path, *FLAGS, app="wsgi:application", **environment)

    return make


def health(server: Server) -> dict[str, Any]:
    """What /healthz says about the Producer."""
    status, body = get(server.port, "/healthz")
    assert status == 200
    answer = json.loads(body)
    [producer] = answer["producers"]
    assert answer["status"] == ("ok" if producer["problem"] is None else "degraded")
    return dict(producer)


def posted(server: Server, count: int) -> tuple[int, int]:
    """How many of so many publishes succeeded, and failed."""
    answers = publish_from(CLIENTS, server.port, [f"n{number}" for number in range(count)])
    assert (answers.refused, answers.broken) == ([], [])
    assert {answer.split()[1] for _, answer in answers.other} <= {"500"}
    return len(answers.ok), len(answers.other)


def test_an_nsqd_that_is_killed(serve: Serve) -> None:
    with (
        running_nsqd("process") as nsqd,
        serve(NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address, NSQ_PUBLISH_TIMEOUT="1000") as server,
    ):
        assert posted(server, 1) == (1, 0)
        nsqd.kill()
        wait_for(lambda: health(server)["problem"], "the circuit")
        assert f"no connection to {nsqd.tcp_address}" in health(server)["problem"]
        assert posted(server, 100) == (0, 100)
        assert get(server.port, "/plain")[0] == 200
        nsqd.start()
        wait_for(lambda: health(server)["problem"] is None, "the connection")
        assert posted(server, 1) == (1, 0)


def test_an_nsqd_that_stands_still(serve: Serve) -> None:
    with (
        running_nsqd("process") as nsqd,
        serve(NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address, NSQ_PUBLISH_TIMEOUT="5") as server,
    ):
        assert posted(server, 1) == (1, 0)
        assert isinstance(nsqd, Process)
        assert nsqd.process is not None
        os.kill(nsqd.process.pid, signal.SIGSTOP)
        try:
            # A process that is being stopped may still answer.
            wait_for(lambda: posted(server, 1) == (0, 1), "the standstill")
            wait_for(lambda: health(server)["problem"], "the circuit")
            before = health(server)
            assert "left a publish unanswered" in before["problem"]
            assert posted(server, 100) == (0, 100)
            assert get(server.port, "/plain")[0] == 200
            after = health(server)
            # None of them was sent, and waited for an answer.
            assert (after["unknown"], after["not_sent"]) == (before["unknown"], before["not_sent"] + 100)
        finally:
            os.kill(nsqd.process.pid, signal.SIGCONT)
        wait_for(lambda: health(server)["problem"] is None, "the end of the doubt")
        assert posted(server, 1) == (1, 0)
