"""Django in real servers, publishing in transactions: what is answered, committed and consumed is the same."""

from collections import Counter

import pytest
from gunicorn.workers import SUPPORTED_WORKERS

from gnsq_like import Producer
from tests.support.daemons import running_nsqd, wait_for
from tests.support.web import CONF, IS_THOROUGH, WORKERS, gunicorn, publish_from

#: Requests of one test: enough for both workers and all clients to be at it at once; with the thorough profile, many.
REQUESTS = 5000 if IS_THOROUGH else 250
CLIENTS = 50

#: Every tenth is rolled back after its publish.
NAMES = [f"{'bad' if number % 10 == 0 else 'good'}{number}" for number in range(REQUESTS)]
GOOD = [name for name in NAMES if name.startswith("good")]
BAD = [name for name in NAMES if name.startswith("bad")]

#: What a request that was not rolled back leads to.
ONCE = dict.fromkeys(GOOD, 1)


has_asgi = pytest.mark.skipif("asgi" not in SUPPORTED_WORKERS, reason="this gunicorn has no asgi workers")


def runserver(project, **environment):
    return project.running(
        "runserver", "--noreload", "127.0.0.1:0", listening=r"http://127\.0\.0\.1:(\d+)/", **environment
    )


def gevent_workers(project, **environment):
    return gunicorn(project.path, *WORKERS["gevent"], app="wsgi:application", **environment)


#: What docs/web.rst says of gevent workers and --preload: Django's connections are then of a greenlet, not of a thread.
PATCHED_CONF = """
from gevent import monkey
monkey.patch_all()
"""


def preloaded_gevent_workers(project, **environment):
    return gunicorn(
        project.path, *WORKERS["gevent"], "--preload", conf=PATCHED_CONF, app="wsgi:application", **environment
    )


def preloaded_threaded_workers(project, **environment):
    return gunicorn(project.path, *WORKERS["gthread"], "--preload", app="wsgi:application", **environment)


@pytest.mark.parametrize("serve", [runserver, gevent_workers, preloaded_gevent_workers, preloaded_threaded_workers])
@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_every_request_answered_200_is_a_message_consumed_once(project, serve, kind):
    with running_nsqd(kind) as nsqd:
        environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
        with serve(project, **environment) as server:
            # Beside the requests, as in life: both write into one database.
            with project.running("nsq_run", "book", **environment) as reader:
                answers = publish_from(CLIENTS, server.port, NAMES, "orders")
                assert (answers.refused, answers.broken) == ([], []), server.log
                wait_for(lambda: len(project.lines("book")) >= len(GOOD), "all messages", 60)
                assert reader.end() == 0
            assert server.process.poll() is None
        assert sorted(answers.ok) == sorted(GOOD)
        assert sorted(name for name, _ in answers.other) == sorted(BAD)
        assert Counter(project.lines("request")) == ONCE
        assert Counter(project.lines("book")) == ONCE
        # Each message was sent when its row was there to be found.
        assert reader.noted("missed") == []
        assert len(reader.noted("found")) == len(GOOD)


@pytest.mark.parametrize("kind", ["gevent", "gthread", pytest.param("asgi", marks=has_asgi)])
def test_readers_in_gunicorns_workers(project, kind):
    conf = CONF.replace("WorkerReaders()", 'WorkerReaders("gnsq_like.contrib.django:make_readers")')
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            project.path,
            *("-k", kind, "-w", "2"),
            conf=conf,
            app="asgi:application" if kind == "asgi" else "wsgi:application",
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
        ) as server,
    ):
        # gunicorn loses a SIGTERM that comes while a gevent worker boots, so both must be at work before it.
        count = 0
        while len(server.pids("ended")) < 2:
            count += 20
            producer.multi_publish("work", [b"0.01"] * 20)
            wait_for(lambda: len(server.noted("ended")) >= count, "the first messages", 30)  # noqa: B023
        producer.multi_publish("work", [b"0.3"] * 5)
        wait_for(lambda: server.noted("began").count("0.3") == 5, "the handlers", 30)
        assert server.end() == 0
        assert server.noted("ended").count("0.3") == 5
        assert "Traceback" not in server.log
