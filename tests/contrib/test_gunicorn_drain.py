"""The effect of gunicorn's signals on handlers that run in its workers."""

import os
import signal
from pathlib import Path

import gevent
import pytest

from gnsq_like import Producer, Reader
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.web import (
    CLOSING,
    CONF,
    UP,
    WORKERS,
    Answers,
    Consumed,
    channel_of,
    client_states,
    gunicorn,
    publish_from,
    thorough,
    wait_until_all_is_finished,
)
from tests.support.worker_kinds import GTHREAD

pytestmark = pytest.mark.servers

#: Far more seconds than a test waits for a server's end: a worker that waited for the time would fail it.
NO_END = "--graceful-timeout=1000"


def wait_until_closing(nsqd: Running, count: int) -> None:
    """Wait until this many Readers with unanswered messages have been told to stop, and have sent CLS."""
    wait_for(lambda: client_states(nsqd, "work").count(CLOSING) >= count, "CLS", 30)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("gevent", signal.SIGTERM),
        pytest.param("gthread", signal.SIGTERM, marks=thorough),
        pytest.param("sync", signal.SIGTERM, marks=pytest.mark.sample),
        ("gevent", signal.SIGHUP),
        ("gthread", signal.SIGHUP),
    ],
)
def test_no_handler_shorter_than_graceful_timeout_is_cut(tmp_path: Path, kind: str, number: int) -> None:
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        names = [f"gate-{number}" for number in range(20)]
        producer.multi_publish("work", [name.encode() for name in names])
        wait_for(lambda: len(server.noted("handling")) == 20, "all handlers", 30)
        old = server.pids("handling")
        server.process.send_signal(number)
        wait_until_closing(nsqd, len(old))
        assert server.noted("handled") == []
        server.open_gate()
        if number == signal.SIGTERM:
            assert server.wait_for_end() == 0
        else:
            wait_for(
                lambda: server.log.count("Worker exiting") >= 2 and len(server.noted("handled")) == 20, "the end", 30
            )
            producer.publish("work", b"0-more")
            wait_for(lambda: "0-more" in server.noted("handled"), "the new workers")
            assert server.pids("handling") > old
        # Each was begun once, and has ended.
        assert sorted(set(server.noted("handling")) - {"0-more"}) == sorted(names)
        assert sorted(server.noted("handled")) == sorted(server.noted("handling"))
        assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", ["gevent", "gthread"])
def test_a_handler_longer_than_graceful_timeout_gives_its_message_back(tmp_path: Path, kind: str) -> None:
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *WORKERS[kind], "--graceful-timeout=2", conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        producer.publish("work", b"gate-long")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        assert server.end() == 0
        assert "stopping work/workers with 1 messages unanswered" in server.log
        assert server.noted("handled") == []
        again = Consumed()
        with Reader("work", "workers", again.handle, nsqd_tcp_addresses=nsqd.tcp_address):
            wait_for(lambda: again, "the message")
        assert again == {"gate-long": 1}


def test_a_handler_may_take_longer_than_timeout_when_one_worker_goes(tmp_path: Path) -> None:
    """A master that goes on kills workers that give no sign of life: one that waits for handlers must give it."""
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *WORKERS["gthread"], "--timeout=2", conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        names = [f"4.2-{number}" for number in range(10)]
        producer.multi_publish("work", [name.encode() for name in names])
        wait_for(lambda: len(server.noted("handling")) == 10, "all handlers", 30)
        server.process.send_signal(signal.SIGTTOU)
        wait_for(lambda: "Worker exiting" in server.log, "the end of one worker")
        wait_for(lambda: len(server.noted("handled")) == 10, "all messages", 30)
        assert sorted(server.noted("handled")) == sorted(server.noted("handling")) == sorted(names)
        assert "WORKER TIMEOUT" not in server.log


def test_a_worker_that_is_timed_out_lets_handlers_end(tmp_path: Path) -> None:
    """A request that takes longer than gunicorn's timeout ends a sync worker; its handlers go on."""
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *("-k", "sync", "--timeout=1"), conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        producer.publish("work", b"gate-x")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        answers = Answers()
        asking = gevent.spawn(answers.ask, server.port, "slow", "/publish/clicks/slow?seconds=100")
        wait_until_closing(nsqd, 1)
        assert "WORKER TIMEOUT" in server.log
        assert server.noted("handled") == []
        server.open_gate()
        asking.get()
        assert answers.ok == []
        wait_for(lambda: server.log.count(UP) == 2, "another worker", 30)
        assert server.noted("handled") == server.noted("handling") == ["gate-x"]


@pytest.mark.parametrize("kind", ["gevent", GTHREAD])
def test_workers_that_are_recycled_cut_no_handler_and_drop_no_request(tmp_path: Path, kind: str) -> None:
    names: list[str] = []
    with (
        running_nsqd("process") as nsqd,
        gunicorn(
            tmp_path, *WORKERS[kind], "--max-requests=50", conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        while len(server.pids("began")) < 4:
            more = [f"0.05-{number}" for number in range(len(names), len(names) + 100)]
            answers = publish_from(10, server.port, more, "work")
            assert (answers.other, answers.refused, answers.broken) == ([], [], [])
            names += more
        wait_for(lambda: len(server.noted("handled")) >= len(names), "all messages", 30)
        assert sorted(server.noted("handled")) == sorted(server.noted("handling")) == sorted(names)


@pytest.mark.parametrize("kind", ["gevent", "sync"])
def test_sigint_does_not_wait_for_handlers_and_loses_no_message(tmp_path: Path, kind: str) -> None:
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"gate-long")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        assert server.end(signal.SIGINT) == 0
        again = Consumed()
        with Reader("work", "workers", again.handle, nsqd_tcp_addresses=nsqd.tcp_address):
            wait_for(lambda: again, "the message")
        assert again == {"gate-long": 1}


#: Between worker_int and worker_exit, which are a tenth of a second apart, the handlers end.
ENDING_CONF = (
    CONF
    + """
import os
import time
from pathlib import Path
from tests.support.notes import open_gate, read_notes

def worker_int(worker):
    readers.worker_int(worker)
    path = Path(os.environ["NOTES"])
    open_gate(path)
    while not any(note.what == "handled" for note in read_notes(path)):
        time.sleep(0.01)
"""
)


def test_a_handler_that_ends_after_sigint_and_before_the_workers_exit_is_answered_once(tmp_path: Path) -> None:
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *("-k", "gthread"), NO_END, conf=ENDING_CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        producer.publish("work", b"gate-x")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        assert server.end(signal.SIGINT) == 0
        assert server.noted("handled") == ["gate-x"]
        wait_until_all_is_finished(nsqd, "work")
        assert channel_of(nsqd, "work")["requeue_count"] == 0


@pytest.mark.parametrize("kind", ["gthread", pytest.param("gevent", marks=thorough)])
def test_sigint_after_sigterm_gives_messages_back(tmp_path: Path, kind: str) -> None:
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"gate-long")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        [worker] = server.pids("handling")
        os.kill(int(worker), signal.SIGTERM)
        wait_until_closing(nsqd, 1)
        os.kill(int(worker), signal.SIGINT)
        # Long before nsqd's message timeout.
        wait_for(lambda: server.noted("handling") == ["gate-long"] * 2, "the message, at the other worker", 30)
        assert len(server.pids("handling")) == 2
        assert server.end(signal.SIGINT) == 0
