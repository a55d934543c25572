"""What a handler leaves behind does not reach the next message, and its failure is logged where it ran."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import gevent
import pytest

from gnsq_like import Batch, Message, Reader, ReaderGroup
from gnsq_like.testing import RunningNsqd, running_nsqd
from tests.support.daemons import wait_for
from tests.support.scripts import run_script

USER: ContextVar[str] = ContextVar("USER", default="nobody")
OF_THREAD = threading.local()
COUNT = 60

#: How a Reader calls a function for each message, or for several.
FORMS = {"handler": lambda function: function, "batch": lambda function: Batch(function, size=3, interval=0.01)}
PLACES = ["greenlet", "thread"]


@pytest.fixture
def nsqd() -> Iterator[RunningNsqd]:
    with running_nsqd() as running:
        yield running


@contextmanager
def started_as(user: str) -> Iterator[None]:
    token = USER.set(user)
    try:
        yield
    finally:
        USER.reset(token)


def publish(nsqd: RunningNsqd, count: int = COUNT) -> None:
    for number in range(count):
        nsqd.publish("t", b"%d" % number)


@pytest.mark.parametrize("spawn", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group", [False, True], ids=["alone", "in a group's thread"])
def test_each_message_has_a_fresh_copy_of_the_context_of_the_start(
    nsqd: RunningNsqd, form: str, spawn: Any, group: bool
) -> None:
    seen: list[str] = []

    def handle(given: Any) -> None:
        seen.append(USER.get())
        USER.set("another message's")
        if len(seen) % 2:
            gevent.sleep(0)

    reader = Reader(
        "t", "c", FORMS[form](handle), nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=10, concurrency=3, spawn=spawn
    )
    publish(nsqd)
    with started_as("who started it"):
        runnable: Any = ReaderGroup(reader, own_thread=True) if group else reader
        runnable.start()
    wait_for(lambda: reader.stats()["finished"] == COUNT)
    runnable.stop()
    assert {*seen} == {"who started it"}
    assert USER.get() == "nobody"


@pytest.mark.parametrize("spawn", PLACES)
@pytest.mark.parametrize("hook", ["on_giving_up", "on_expired"])
def test_a_hook_instead_of_the_handler_has_one_too(nsqd: RunningNsqd, hook: str, spawn: Any) -> None:
    seen: list[str] = []

    def instead(message: Message) -> None:
        seen.append(USER.get())
        USER.set("another message's")

    limit: Any = {"on_expired": {"max_age": 1e-6}, "on_giving_up": {"max_attempts": 1}}[hook]
    options: dict[str, Any] = {"concurrency": 1, "spawn": spawn, hook: instead, **limit}

    def again(message: Message) -> None:
        message.requeue(0, backoff=False)

    publish(nsqd, 6)
    with started_as("who started it"):
        reader = Reader("t", "c", again, nsqd_tcp_addresses=nsqd.tcp_address, **options)
        with reader:
            wait_for(lambda: reader.stats()["finished"] == 6)
    assert seen == ["who started it"] * 6


class Seen(logging.Handler):
    """Notes what a filter or an error tracker would see at each record, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "gnsq_like.reader.handlers":
            self.seen.append((USER.get(), getattr(OF_THREAD, "request", None)))


@pytest.fixture
def logged() -> Iterator[Seen]:
    handler = Seen()
    logger = logging.getLogger("gnsq_like.reader")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def fail(given: Any) -> None:
    number = (given[0] if isinstance(given, list) else given).body.decode()
    USER.set(f"user {number}")
    OF_THREAD.request = f"request {number}"
    if number == "1":
        raise ValueError("fails")
    raise LookupError("fails, too")


def refuse(given: Any) -> bool:
    with pytest.raises(LookupError):
        fail(given)
    return False


@pytest.mark.parametrize("spawn", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("handler", [fail, refuse])
def test_a_failure_is_logged_where_the_handler_ran(
    nsqd: RunningNsqd, form: str, spawn: Any, handler: Any, logged: Seen
) -> None:
    """In its context, and in its thread."""
    given = Batch(handler, size=1) if form == "batch" else handler
    reader = Reader("t", "c", given, nsqd_tcp_addresses=nsqd.tcp_address, concurrency=1, spawn=spawn)
    nsqd.publish("t", b"0")
    with reader:
        wait_for(lambda: reader.stats()["requeued"] == 1)
    assert logged.seen == [("user 0", "request 0")]


@pytest.mark.parametrize("spawn", PLACES)
def test_the_failure_of_a_hook_is_logged_where_it_ran(nsqd: RunningNsqd, spawn: Any, logged: Seen) -> None:
    nsqd.publish("t", b"0")
    options: dict[str, Any] = {"max_age": 1e-6, "on_expired": fail, "spawn": spawn}
    with Reader("t", "c", print, nsqd_tcp_addresses=nsqd.tcp_address, **options) as reader:
        wait_for(lambda: reader.stats()["requeued"] == 1)
    assert logged.seen == [("user 0", "request 0")]


@pytest.mark.parametrize("spawn", PLACES)
def test_in_a_patched_process(spawn: str) -> None:
    run_script(
        """
        from gevent import monkey

        monkey.patch_all()
        import logging
        import sys
        from contextvars import ContextVar

        from gnsq_like import Reader
        from gnsq_like.testing import running_nsqd, wait_until

        user = ContextVar("user", default="nobody")
        seen = []


        class Seen(logging.Handler):
            def emit(self, record):
                seen.append(user.get())


        logger = logging.getLogger("gnsq_like.reader.handlers")
        logger.addHandler(Seen())
        logger.propagate = False


        def handle(message):
            assert user.get() == "nobody"
            user.set(message.body.decode())
            raise ValueError(message.body)


        with running_nsqd() as nsqd:
            for number in range(20):
                nsqd.publish("t", b"%d" % number)
            options = {"spawn": sys.argv[1], "concurrency": 3, "max_in_flight": 10, "max_backoff_duration": 0}
            with Reader("t", "c", handle, nsqd_tcp_addresses=nsqd.tcp_address, **options) as reader:
                wait_until(lambda: reader.stats()["requeued"] == 20)
        assert sorted(seen, key=int) == [str(number) for number in range(20)], seen
        """,
        spawn,
    )
