"""What gunicorn's signals do to handlers that run in its workers."""

import os
import signal
import time

import pytest

from gnsq_like import Producer, Reader
from tests.support.daemons import running_nsqd, wait_for
from tests.support.web import (
    CLOSING,
    CONF,
    UP,
    WORKERS,
    Answers,
    Consumed,
    client_states,
    gunicorn,
    publish_from,
    thorough,
)

#: Seconds: long enough that only a worker which waits for nothing but the time takes so long.
GRACEFUL = 20


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
def test_no_handler_shorter_than_graceful_timeout_is_cut(tmp_path, kind, number):
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path,
            *WORKERS[kind],
            f"--graceful-timeout={GRACEFUL}",
            conf=CONF,
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
        ) as server,
    ):
        names = [f"1.2-{number}" for number in range(20)]
        producer.multi_publish("work", [name.encode() for name in names])
        wait_for(lambda: len(server.noted("handling")) == 20, "all handlers", 30)
        old = server.pids("handling")
        began = time.monotonic()
        if number == signal.SIGTERM:
            assert server.end() == 0
        else:
            server.process.send_signal(number)
            wait_for(
                lambda: server.log.count("Worker exiting") >= 2 and len(server.noted("handled")) == 20, "the end", 30
            )
            producer.publish("work", b"0-more")
            wait_for(lambda: "0-more" in server.noted("handled"), "the new workers")
            assert server.pids("handling") > old
        # It is the handlers' end that was waited for, and not the time.
        assert time.monotonic() - began < GRACEFUL
        # Each was begun once, and came to its end.
        assert sorted(set(server.noted("handling")) - {"0-more"}) == sorted(names)
        assert sorted(server.noted("handled")) == sorted(server.noted("handling"))
        assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", ["gevent", "gthread"])
def test_a_handler_longer_than_graceful_timeout_gives_its_message_back(tmp_path, kind):
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *WORKERS[kind], "--graceful-timeout=2", conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        producer.publish("work", b"100-long")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        assert server.end() == 0
        assert "stopping with 1 messages of work/workers unanswered" in server.log
        assert server.noted("handled") == []
        again = Consumed()
        with Reader("work", "workers", again.handle, nsqd_tcp_addresses=nsqd.tcp_address):
            wait_for(lambda: again, "the message")
        assert again == {"100-long": 1}


def test_a_handler_may_take_longer_than_timeout_when_one_worker_goes(tmp_path):
    """A master that goes on looks whether its workers live: while a worker is held, it must seem to."""
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
        wait_for(lambda: "Worker exiting" in server.log, "one worker to go")
        wait_for(lambda: len(server.noted("handled")) == 10, "all messages", 30)
        assert sorted(server.noted("handled")) == sorted(server.noted("handling")) == sorted(names)
        assert "WORKER TIMEOUT" not in server.log


def test_a_worker_that_is_timed_out_lets_handlers_end(tmp_path):
    """A request that takes longer than gunicorn's timeout is the end of a sync worker; its handlers go on."""
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path, *("-k", "sync", "--timeout=1"), conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address
        ) as server,
    ):
        producer.publish("work", b"4-x")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        answers = Answers()
        answers.ask(server.port, "slow", "/publish/clicks/slow?seconds=100")
        assert (answers.ok, server.noted("handled"), "WORKER TIMEOUT" in server.log) == ([], [], True)
        wait_for(lambda: server.log.count(UP) == 2, "another worker", 30)
        assert server.noted("handled") == server.noted("handling") == ["4-x"]


@pytest.mark.parametrize("kind", ["gevent", "gthread"])
def test_workers_that_are_recycled_cut_no_handler_and_drop_no_request(tmp_path, kind):
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
def test_sigint_does_not_wait_for_handlers_and_loses_no_message(tmp_path, kind):
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"20-long")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        began = time.monotonic()
        assert server.end(signal.SIGINT) == 0
        assert time.monotonic() - began < 10
        again = Consumed()
        with Reader("work", "workers", again.handle, nsqd_tcp_addresses=nsqd.tcp_address):
            wait_for(lambda: again, "the message")
        assert again == {"20-long": 1}


@pytest.mark.parametrize("kind", ["gthread", pytest.param("gevent", marks=thorough)])
def test_sigint_after_sigterm_gives_messages_back(tmp_path, kind):
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, *WORKERS[kind], conf=CONF, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"100-long")
        wait_for(lambda: server.noted("handling"), "the handler", 30)
        [worker] = server.pids("handling")
        os.kill(int(worker), signal.SIGTERM)
        wait_for(lambda: CLOSING in client_states(nsqd, "work"), "CLS", 30)
        os.kill(int(worker), signal.SIGINT)
        # Long before nsqd would find that it has waited for too long.
        wait_for(lambda: server.noted("handling") == ["100-long"] * 2, "the message, at the other worker", 30)
        assert len(server.pids("handling")) == 2
        assert server.end(signal.SIGINT) == 0
