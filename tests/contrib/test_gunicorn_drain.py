"""The effect of gunicorn's signals on handlers that run in its workers."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import gevent
import pytest

from gnsq_like import Producer, Reader
from tests.support.commands import needs_proc
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.web import (
    CLOSING,
    CONF,
    GTHREAD,
    UP,
    WORKERS,
    Answers,
    Consumed,
    Server,
    channel_of,
    client_states,
    gunicorn,
    publish_from,
    thorough,
    wait_until_all_is_finished,
)

pytestmark = pytest.mark.servers

#: Far more seconds than a test waits for a server's end: a worker that waited for the time would fail it.
NO_END = "--graceful-timeout=1000"
#: Far more seconds than a test waits for a message: one that comes again was given back.
NO_MSG_TIMEOUT = 600.0


def wait_until_closing(nsqd: Running, count: int) -> None:
    """Wait until this many Readers with unanswered messages have been told to stop, and have sent CLS."""
    wait_for(lambda: client_states(nsqd, "work").count(CLOSING) >= count, "CLS")


def wait_for_signs_of_life(server: Server) -> None:
    """Wait until a worker exits, and has renewed, three times since, what tells gunicorn's master that it is alive.

    That is the time of a file without a name, of which the worker keeps a descriptor. How soon the master would kill a
    worker without signs does not matter.
    """
    found = wait_for(lambda: re.search(r"Worker exiting \(pid: (\d+)\)", server.log), "the end of one worker", 60)
    assert found is not None
    places = Path(f"/proc/{found[1]}/fd")

    def last_sign() -> float:
        for each in places.iterdir():
            with suppress(FileNotFoundError):  # it has closed this one
                if "wgunicorn-" in os.readlink(each):
                    return each.stat().st_mtime
        raise AssertionError("there is no such file")

    for _ in range(3):
        before = last_sign()
        wait_for(lambda: last_sign() > before, "a sign of life", 60)  # noqa: B023


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("gevent", signal.SIGTERM),
        pytest.param("gthread", signal.SIGTERM, marks=thorough),
        ("sync", signal.SIGTERM),
        ("gevent", signal.SIGHUP),
        ("gthread", signal.SIGHUP),
    ],
)
def test_no_handler_shorter_than_graceful_timeout_is_cut(tmp_path: Path, kind: str, number: int) -> None:
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        names = [f"gate-{number}" for number in range(20)]
        producer.multi_publish("work", [name.encode() for name in names])
        wait_for(lambda: len(server.noted("handling")) == 20, "all handlers")
        old = server.pids("handling")
        server.process.send_signal(number)
        wait_until_closing(nsqd, len(old))
        assert server.noted("handled") == []
        server.open_gate()
        if number == signal.SIGTERM:
            assert server.wait_for_end() == 0
        else:
            wait_for(lambda: server.log.count("Worker exiting") >= 2 and len(server.noted("handled")) == 20, "the end")
            producer.publish("work", b"0-more")
            wait_for(lambda: "0-more" in server.noted("handled"), "the new workers")
            assert server.pids("handling") > old
        # Each was begun once, and has ended.
        assert sorted(set(server.noted("handling")) - {"0-more"}) == sorted(names)
        assert sorted(server.noted("handled")) == sorted(server.noted("handling"))
        assert "Traceback" not in server.log


PATIENCE_CONF = (
    CONF
    + """
from tests.support.notes import note

def post_worker_init(worker):
    readers.post_worker_init(worker)
    note("patience", readers._patience)
"""
)


@pytest.mark.parametrize("kind", ["gevent", "gthread"])
def test_a_handler_longer_than_graceful_timeout_gives_its_message_back(tmp_path: Path, kind: str) -> None:
    """The worker alone gets the signal: a master that stops would kill it a moment after it has given up."""
    with (
        running_nsqd(msg_timeout=NO_MSG_TIMEOUT) as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path,
            *WORKERS[kind],
            "--graceful-timeout=2",
            conf=PATIENCE_CONF,
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
        ) as server,
    ):
        assert {0 < float(patience) < 2 for patience in server.noted("patience")} == {True}
        producer.publish("work", b"gate-long")
        wait_for(lambda: server.noted("handling"), "the handler")
        [worker] = server.pids("handling")
        os.kill(int(worker), signal.SIGTERM)
        wait_for(lambda: server.noted("handling") == ["gate-long"] * 2, "the message, at another worker")
        assert len(server.pids("handling")) == 2
        assert "stopping work/workers with 1 messages unanswered" in server.log
        assert server.noted("handled") == []
        server.open_gate()
        wait_until_all_is_finished(nsqd, "work")


@needs_proc
def test_a_handler_may_take_longer_than_timeout_when_one_worker_goes(tmp_path: Path) -> None:
    """A master that goes on kills workers that give no sign of life: one that waits for handlers must give it."""
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS["gthread"], NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        names = [f"gate-{number}" for number in range(10)]
        producer.multi_publish("work", [name.encode() for name in names])
        wait_for(lambda: len(server.noted("handling")) == 10, "all handlers")
        server.process.send_signal(signal.SIGTTOU)
        wait_for_signs_of_life(server)
        assert server.noted("handled") == []
        server.open_gate()
        wait_for(lambda: len(server.noted("handled")) == 10, "all messages")
        assert sorted(server.noted("handled")) == sorted(server.noted("handling")) == sorted(names)


@needs_proc
def test_a_worker_that_is_timed_out_lets_handlers_end(tmp_path: Path) -> None:
    """A request that takes longer than gunicorn's timeout ends a sync worker; its handlers go on.

    The test sends the signal that the master sends then: with a short timeout it would also time out workers that are
    slow to start.
    """
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *("-k", "sync", "--timeout=1000"), NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        producer.publish("work", b"gate-x")
        wait_for(lambda: server.noted("handling"), "the handler")
        answers = Answers()
        asking = gevent.spawn(answers.ask, server.port, "slow", "/publish/clicks/slow?seconds=1000")
        wait_for(lambda: server.noted("began"), "the request")
        [worker] = server.pids("handling")
        os.kill(int(worker), signal.SIGABRT)
        wait_until_closing(nsqd, 1)
        wait_for_signs_of_life(server)
        assert server.noted("handled") == []
        server.open_gate()
        asking.get()
        assert answers.ok == []
        wait_for(lambda: server.log.count(UP) == 2, "another worker")
        assert server.noted("handled") == server.noted("handling") == ["gate-x"]


@pytest.mark.parametrize("kind", ["gevent", GTHREAD])
def test_workers_that_are_recycled_cut_no_handler_and_drop_no_request(tmp_path: Path, kind: str) -> None:
    names: list[str] = []
    with (
        running_nsqd() as nsqd,
        gunicorn(
            tmp_path, *WORKERS[kind], "--max-requests=50", conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        while len(server.pids("began")) < 4:
            more = [f"0.05-{number}" for number in range(len(names), len(names) + 100)]
            answers = publish_from(10, server.port, more, "work")
            assert (answers.other, answers.refused, answers.broken) == ([], [], [])
            names += more
        wait_for(lambda: len(server.noted("handled")) >= len(names), "all messages")
        assert sorted(server.noted("handled")) == sorted(server.noted("handling")) == sorted(names)


@pytest.mark.parametrize("kind", ["gevent", "sync"])
def test_sigint_does_not_wait_for_handlers_and_loses_no_message(tmp_path: Path, kind: str) -> None:
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"gate-long")
        wait_for(lambda: server.noted("handling"), "the handler")
        assert server.end(signal.SIGINT) == 0
        again = Consumed()
        with Reader("work", "workers", again.handle, nsqd_tcp_addresses=nsqd.tcp_address):
            wait_for(lambda: again, "the message")
        assert again == {"gate-long": 1}


#: Between worker_int and worker_exit, which are a tenth of a second apart, the handlers end and are answered.
ENDING_CONF = (
    CONF
    + """
import os
import time
from pathlib import Path
from tests.support.notes import open_gate

def worker_int(worker):
    [reader] = readers._group.readers
    readers.worker_int(worker)
    open_gate(Path(os.environ["NOTES"]))
    while not reader.stats()["finished"]:
        time.sleep(0.01)
"""
)


def test_a_handler_that_ends_between_sigint_and_exit_is_answered_once(tmp_path: Path) -> None:
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *("-k", "gthread"), NO_END, conf=ENDING_CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        producer.publish("work", b"gate-x")
        wait_for(lambda: server.noted("handling"), "the handler")
        assert server.end(signal.SIGINT) == 0
        assert server.noted("handled") == ["gate-x"]
        wait_until_all_is_finished(nsqd, "work")
        assert channel_of(nsqd, "work")["requeue_count"] == 0


@pytest.mark.parametrize("kind", ["gthread", pytest.param("gevent", marks=thorough)])
def test_sigint_after_sigterm_gives_messages_back(tmp_path: Path, kind: str) -> None:
    with (
        running_nsqd(msg_timeout=NO_MSG_TIMEOUT) as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], NO_END, conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"gate-long")
        wait_for(lambda: server.noted("handling"), "the handler")
        [worker] = server.pids("handling")
        os.kill(int(worker), signal.SIGTERM)
        wait_until_closing(nsqd, 1)
        os.kill(int(worker), signal.SIGINT)
        wait_for(lambda: server.noted("handling") == ["gate-long"] * 2, "the message, at the other worker")
        assert len(server.pids("handling")) == 2
        assert server.end(signal.SIGINT) == 0
