"""Django in real servers: answers, commits and consumed messages agree; and readers in their workers."""

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from gunicorn.workers import SUPPORTED_WORKERS

from gnsq_like import Producer
from tests.support.daemons import KINDS, Kind, running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.web import (
    CLOSING,
    CONF,
    IS_THOROUGH,
    WORKERS,
    Server,
    client_states,
    get,
    gunicorn,
    publish_from,
    running,
)

pytestmark = pytest.mark.servers

#: Requests of one test: enough for both workers and all clients to be busy at once; with the thorough profile, many.
REQUESTS = 5000 if IS_THOROUGH else 100
CLIENTS = 50

#: Every tenth request is rolled back after its publish.
NAMES = [f"{'bad' if number % 10 == 0 else 'good'}{number}" for number in range(REQUESTS)]
GOOD = [name for name in NAMES if name.startswith("good")]
BAD = [name for name in NAMES if name.startswith("bad")]

#: Each name of a request that was not rolled back, once.
ONCE = dict.fromkeys(GOOD, 1)


has_asgi = pytest.mark.skipif("asgi" not in SUPPORTED_WORKERS, reason="this gunicorn has no asgi workers")


Serve = Callable[..., AbstractContextManager[Server]]


def runserver(project: Project, **environment: str) -> AbstractContextManager[Server]:
    return project.running(
        "runserver", "--noreload", "127.0.0.1:0", listening=r"http://127\.0\.0\.1:(\d+)/", **environment
    )


def gevent_workers(project: Project, **environment: str) -> AbstractContextManager[Server]:
    return gunicorn(project.path, *WORKERS["gevent"], app="wsgi:application", **environment)


#: From docs/web.rst, for gevent workers with --preload: Django's connections then belong to greenlets, not to threads.
PATCHED_CONF = """
from gevent import monkey
monkey.patch_all()
"""


def preloaded_gevent_workers(project: Project, **environment: str) -> AbstractContextManager[Server]:
    return gunicorn(
        project.path, *WORKERS["gevent"], "--preload", conf=PATCHED_CONF, app="wsgi:application", **environment
    )


def preloaded_threaded_workers(project: Project, **environment: str) -> AbstractContextManager[Server]:
    return gunicorn(project.path, *WORKERS["gthread"], "--preload", app="wsgi:application", **environment)


def uvicorn(project: Project, app: str = "application", **environment: str) -> AbstractContextManager[Server]:
    command = ["-m", "uvicorn", "--port", "0", f"asgi:{app}"]
    return running(command, project.path, r"Uvicorn running on http://127\.0\.0\.1:(\d+)", **environment)


def daphne(project: Project, **environment: str) -> AbstractContextManager[Server]:
    command = ["-m", "daphne", "-b", "127.0.0.1", "-p", "0", "asgi:application"]
    return running(command, project.path, r"Listening on TCP address 127\.0\.0\.1:(\d+)", **environment)


@pytest.mark.parametrize(
    "serve", [runserver, gevent_workers, preloaded_gevent_workers, preloaded_threaded_workers, uvicorn, daphne]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_request_answered_200_is_a_message_consumed_once(project: Project, serve: Serve, kind: Kind) -> None:
    with running_nsqd(kind) as nsqd:
        environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
        with serve(project, **environment) as server:
            # The readers run beside the requests, and both write into one database.
            with project.running("nsq_run", "book", **environment) as reader:
                answers = publish_from(CLIENTS, server.port, NAMES, "orders")
                assert (answers.refused, answers.broken) == ([], []), server.log
                wait_for(lambda: len(project.lines("book")) >= len(GOOD), "all messages", 60)
                assert reader.end() == 0
            if serve in (uvicorn, daphne):
                assert get(server.port, "/apublish/elsewhere/x") == (200, "ok")
            assert server.process.poll() is None
        assert sorted(answers.ok) == sorted(GOOD)
        assert sorted(name for name, _ in answers.other) == sorted(BAD)
        assert Counter(project.lines("request")) == ONCE
        assert Counter(project.lines("book")) == ONCE
        # Each message was sent when its row could be found.
        assert reader.noted("missed") == []
        assert len(reader.noted("found")) == len(GOOD)


@pytest.mark.parametrize("kind", ["gevent", "gthread", pytest.param("asgi", marks=has_asgi)])
def test_readers_in_gunicorns_workers(project: Project, kind: str) -> None:
    conf = CONF.replace("WorkerReaders()", 'WorkerReaders("gnsq_like.contrib.django:make_readers")')
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            project.path,
            *("-k", kind, "-w", "2"),
            conf=conf,
            app="asgi:application" if kind == "asgi" else "wsgi:application",
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
        ) as server,
    ):
        # A gevent worker that boots ignores SIGTERM, so both must be at work before.
        count = 0
        while len(server.pids("ended")) < 2:
            count += 20
            producer.multi_publish("work", [b"0.01"] * 20)
            wait_for(lambda: len(server.noted("ended")) >= count, "the first messages")  # noqa: B023
        producer.multi_publish("work", [b"gate"] * 5)
        wait_for(lambda: server.noted("began").count("gate") == 5, "the handlers")
        server.process.send_signal(signal.SIGTERM)
        busy = {note.pid for note in server.notes if note[::2] == ("began", "gate")}
        wait_for(lambda: client_states(nsqd, "work").count(CLOSING) == len(busy), "CLS")
        server.open_gate()
        assert server.wait_for_end() == 0
        assert server.noted("ended").count("gate") == 5
        assert "Traceback" not in server.log


def test_readers_in_the_lifespan_of_uvicorn_end_in_good_order(project: Project) -> None:
    with (
        running_nsqd() as nsqd,
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
