"""Django under uvicorn and daphne: publishing from views of both kinds, readers in the lifespan, one trace."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import AbstractContextManager

import pytest

from gnsq_like import Producer
from tests.support.daemons import running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.web import CLOSING, IS_THOROUGH, Server, client_states, get, publish_from, running

pytestmark = pytest.mark.servers

NAMES = [f"{'bad' if number % 10 == 0 else 'good'}{number}" for number in range(5000 if IS_THOROUGH else 100)]
GOOD = [name for name in NAMES if name.startswith("good")]


def uvicorn(project: Project, app: str = "application", **environment: str) -> AbstractContextManager[Server]:
    command = ["-m", "uvicorn", "--port", "0", f"asgi:{app}"]
    return running(command, project.path, r"Uvicorn running on http://127\.0\.0\.1:(\d+)", **environment)


def daphne(project: Project, **environment: str) -> AbstractContextManager[Server]:
    command = ["-m", "daphne", "-b", "127.0.0.1", "-p", "0", "asgi:application"]
    return running(command, project.path, r"Listening on TCP address 127\.0\.0\.1:(\d+)", **environment)


@pytest.mark.parametrize("serve", [uvicorn, daphne])
def test_every_request_answered_200_is_a_message_consumed_once(project: Project, serve: type) -> None:
    with running_nsqd("process") as nsqd:
        environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
        with serve(project, **environment) as server:
            with project.running("nsq_run", "book", **environment) as reader:
                answers = publish_from(20, server.port, NAMES, "orders")
                assert (answers.refused, answers.broken) == ([], []), server.log
                wait_for(lambda: len(project.lines("book")) >= len(GOOD), "all messages", 60)
                assert reader.end() == 0
            assert get(server.port, "/apublish/elsewhere/x") == (200, "ok")
            assert server.end() in (0, -signal.SIGTERM)
        assert sorted(answers.ok) == sorted(GOOD)
        assert Counter(project.lines("book")) == dict.fromkeys(GOOD, 1)
        assert reader.noted("missed") == []


def test_readers_in_the_lifespan_of_uvicorn_end_in_good_order(project: Project) -> None:
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        uvicorn(project, "with_its_readers", NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"gate-1")
        wait_for(lambda: server.noted("began") == ["gate-1"], "the handler", 60)
        assert get(server.port, "/plain")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client_states(nsqd, "work") == [CLOSING], "CLS", 60)
        server.open_gate()
        server.wait_for_end()
        assert server.noted("ended") == ["gate-1"]
        assert "Traceback" not in server.log


def test_uvicorn_does_not_start_without_its_readers(project: Project) -> None:
    with running(["-m", "uvicorn", "--port", "0", "asgi:with_its_readers"], project.path) as server:
        assert server.wait_for_end(60) != 0
        assert "the readers cannot be started: " in server.log
        assert "NSQ_NSQD_TCP_ADDRESSES" in server.log
