"""Failures in the log: one record each, with fields for structured logs, and the traceback where it is wanted."""

from __future__ import annotations

import logging
import re
import sys
import textwrap
from typing import Any

import gevent
import pytest

from gnsq_like import Batch, Message, deadletter
from tests.support.daemons import wait_for
from tests.support.peer import ScriptedNsqd
from tests.support.reading import ID, answer_cls, ignore, reading, serve, until
from tests.support.scripts import ROOT, run_beside

ONE = (ID % 1).decode()


def store(_: object) -> None:
    raise ValueError("no such\nuser")


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= level]


def consume(
    nsqd: ScriptedNsqd, handler: Any, *, attempts: int = 1, last: bytes = b"REQ", count: int = 1, **options: Any
) -> None:
    with reading([nsqd], handler, max_backoff_duration=0, **options):
        peer = serve(nsqd)
        for number in range(1, count + 1):
            peer.messages(ID % number, attempts=attempts)
            until(peer, last)
        gevent.spawn(answer_cls, peer)


def fields(record: logging.LogRecord, nsqd: ScriptedNsqd, attempts: int = 1) -> bool:
    expected = {"topic": "t", "channel": "c", "message_id": ONE, "attempts": attempts, "nsqd": nsqd.address}
    return {name: vars(record).get(name) for name in expected} == expected


@pytest.mark.parametrize("spawn", ["greenlet", "thread"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_failure_is_an_error_with_its_traceback(
    nsqd: ScriptedNsqd, batch: bool, spawn: str, caplog: pytest.LogCaptureFixture
) -> None:
    consume(nsqd, Batch(store, size=1) if batch else store, spawn=spawn)
    [record] = logged(caplog)
    assert record.levelno == logging.ERROR
    assert record.exc_info
    text = record.getMessage()
    assert "failed with" in text
    assert re.search(rf": ValueError: no such user \({re.escape(__file__)}:\d+, in store\)$", text)
    assert fields(record, nsqd)
    assert vars(record).get("message_ids") == ([ONE] if batch else None)


@pytest.mark.parametrize("log_tracebacks", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_further_failures_of_a_kind_are_warnings_of_one_line(
    nsqd: ScriptedNsqd, batch: bool, log_tracebacks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handler: Any = Batch(store, size=1) if batch else store
    consume(nsqd, handler, log_tracebacks=log_tracebacks, count=3)
    found = [(record.levelname, bool(record.exc_info)) for record in logged(caplog)]
    assert found == [("ERROR", True)] + [("ERROR", True) if log_tracebacks else ("WARNING", False)] * 2


@pytest.mark.parametrize(
    ("on_giving_up", "is_lost"),
    [(None, True), (ignore, False), (deadletter.ToLog(), False)],
    ids=["no hook", "a function", "ToLog"],  # the same in each process of a run
)
def test_giving_up_is_one_error(
    nsqd: ScriptedNsqd, on_giving_up: Any, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    consume(nsqd, ignore, attempts=3, max_attempts=2, on_giving_up=on_giving_up, last=b"FIN")
    [record] = logged(caplog, logging.ERROR)
    text = record.getMessage()
    assert f"gave up message {ONE} of t/c at delivery 3: gnsq_like.errors.NSQError: delivered 3 times" in text
    assert ("it is lost" in text) == is_lost
    assert fields(record, nsqd, attempts=3)


def test_giving_up_that_fails_is_one_error(nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture) -> None:
    errors: list[object] = []
    options: dict[str, Any] = {"on_giving_up": store, "on_error": lambda _, error: errors.append(error)}
    consume(nsqd, ignore, attempts=3, max_attempts=2, **options)
    [record] = logged(caplog)
    assert record.levelno == logging.ERROR
    assert "on_giving_up raised; message" in record.getMessage()
    assert "in store)" in record.getMessage()
    assert fields(record, nsqd, attempts=3)
    assert len(errors) == 1


@pytest.mark.parametrize("batch", [False, True])
def test_false_is_one_error(nsqd: ScriptedNsqd, batch: bool, caplog: pytest.LogCaptureFixture) -> None:
    refuse: Any = lambda _: False  # noqa: E731
    consume(nsqd, Batch(refuse, size=1) if batch else refuse)
    [record] = logged(caplog)
    assert record.levelno == logging.ERROR
    assert "returned False" in record.getMessage()
    assert fields(record, nsqd)


def test_a_message_that_is_too_old_is_no_warning(nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gnsq_like.reader")
    consume(nsqd, ignore, max_age=1, last=b"FIN")
    assert not logged(caplog)
    [record] = [record for record in caplog.records if "has expired" in record.getMessage()]
    assert fields(record, nsqd)


def test_messages_that_are_not_answered_in_time(nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture) -> None:
    held: list[Message] = []

    def hold(message: Message) -> None:
        message.enable_async()
        held.append(message)

    with reading([nsqd], hold):
        peer = serve(nsqd, msg_timeout=1000)
        peer.messages(ID % 1)
        wait_for(lambda: logged(caplog))
        held[0].requeue()
        until(peer, b"REQ")
        gevent.spawn(answer_cls, peer)
    record = logged(caplog)[0]
    assert record.getMessage() == (
        f"1 messages of t/c from {nsqd.address} were not answered within msg_timeout=1 s, "
        f"the first of them {(ID % 1).decode()}; nsqd delivers them again"
    )
    assert fields(record, nsqd)


def test_a_failure_is_seen_without_a_configured_log() -> None:
    """Python writes warnings to stderr then, unless a logger of ours has a handler."""
    code = """
        from gnsq_like import Producer, Reader
        from gnsq_like.testing import running_nsqd

        def store(message):
            reader.stop()
            raise ValueError("no such user")

        with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
            producer.publish("clicks", b"x")
            reader = Reader("clicks", "archive", store, nsqd_tcp_addresses=nsqd.tcp_address)
            reader.run()
    """
    done = run_beside([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT)
    assert done.returncode == 0
    assert "the handler of clicks/archive failed with message" in done.stderr
    assert "ValueError: no such user" in done.stderr
