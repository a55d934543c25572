"""From messages to answers: handlers that fail, answer later, or are not asked any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Batch, Message, Producer, Reader
from gnsq_like.deadletter import DeadLetter, make_envelope, open_envelope
from gnsq_like.errors import InvalidOption, NSQError, Requeue
from gnsq_like.reader.handlers import Handlers
from gnsq_like.runtime.control_loop import ControlLoop
from tests.support.daemons import running_nsqd, wait_for
from tests.support.messages import Source, make_message
from tests.support.peer import HEARTBEAT, PATIENCE
from tests.support.reading import ID, Gate, answer_cls, reading, serve, until


def test_g4_heartbeats_are_answered_while_every_handler_blocks(nsqd):
    gate = Gate()
    with reading([nsqd], gate, max_in_flight=3) as reader:
        peer = nsqd.accept()
        assert peer.subscribe() == b"SUB t c"
        assert peer.line().startswith(b"RDY ")
        peer.messages(ID % 1, ID % 2, ID % 3)
        wait_for(lambda: gate.inside == 3)
        for _ in range(20):
            peer.send(HEARTBEAT)
        lines: list[bytes] = []
        while lines.count(b"NOP") < 20:
            lines.append(peer.line())
        assert not any(line.startswith((b"FIN", b"REQ")) for line in lines)
        gate.open.set()
        wait_for(lambda: reader.stats()["finished"] == 3)
        gevent.spawn(answer_cls, peer)


def test_a_message_beyond_max_attempts_is_given_up_not_handled(nsqd):
    handled: list[Message] = []
    given_up: list[Message] = []
    reader = reading([nsqd], handled.append, max_attempts=3, on_giving_up=given_up.append)
    with reader:
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=3)
        assert all(line.startswith(b"RDY") for line in until(peer, b"FIN " + ID % 1)[:-1])
        peer.messages(ID % 2, attempts=4)
        assert all(line.startswith(b"RDY") for line in until(peer, b"FIN " + ID % 2)[:-1])
        gevent.spawn(answer_cls, peer)
    assert [message.attempts for message in handled] == [3]
    assert [message.attempts for message in given_up] == [4]


@pytest.mark.parametrize("fails", [False, True])
def test_iteration_gives_up_as_handlers_do(fails):
    taken: list[int] = []
    given_up: list[int] = []

    def give_up(message: Message) -> None:
        given_up.append(message.attempts)
        reader.stop()

    with running_nsqd("ours") as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        reader = Reader(
            "t",
            "c",
            nsqd_tcp_addresses=nsqd.tcp_address,
            max_attempts=2,
            default_requeue_delay=0,
            max_backoff_duration=0,
            on_giving_up=give_up,
        )

        def loop() -> None:
            for message in reader:
                with message:
                    taken.append(message.attempts)
                    if fails:
                        raise ValueError
                    message.requeue(0, backoff=False)

        while not given_up:
            with gevent.Timeout(PATIENCE), contextlib.suppress(ValueError):
                loop()
        reader.wait()
    assert taken == [1, 2]
    assert given_up == [2 if fails else 3]
    assert (reader.stats()["given_up"], reader.stats()["finished"]) == (1, 1)


def fail_all(messages: list[Message]) -> None:
    raise ValueError("no user")


#: A handler and options of a Reader that fails with each message, in each way to take messages.
FAILING: dict[str, tuple[Any, dict[str, Any]]] = {
    "handler": (lambda message: fail_all([message]), {}),
    "thread": (lambda message: fail_all([message]), {"spawn": "thread"}),
    "batch": (Batch(fail_all, size=1), {}),
    "batch in a thread": (Batch(fail_all, size=1), {"spawn": "thread"}),
    "pulled": (None, {}),
}


@pytest.mark.parametrize("form", FAILING)
def test_the_failure_of_the_last_permitted_delivery_gives_up_there_and_then(nsqd, form):
    letters: list[DeadLetter] = []

    def loop() -> None:
        for message in reader:
            with contextlib.suppress(ValueError), message:
                fail_all([message])

    handler, options = FAILING[form]
    bury = lambda message: letters.append(open_envelope(make_envelope(message)))  # noqa: E731
    with reading([nsqd], handler, max_attempts=3, on_giving_up=bury, backoff_multiplier=1e-3, **options) as reader:
        looping = gevent.spawn(loop) if handler is None else None
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        assert until(peer, b"REQ")[-1] == b"REQ " + ID % 1 + b" 180000"
        peer.messages(ID % 1, attempts=3)
        assert until(peer, b"FIN")[-1] == b"FIN " + ID % 1
        wait_for(lambda: reader.stats()["finished"])
        stats = reader.stats()
        gevent.spawn(answer_cls, peer)
    if looping is not None:
        looping.get(timeout=PATIENCE)
    [letter] = letters
    assert (letter.attempts, letter.reason) == (3, "ValueError: no user")
    assert (letter.error_type, letter.error_text) == ("ValueError", "no user")
    assert "test_handlers.py:" in letter.error_place
    assert letter.error_place.endswith("in fail_all")
    assert (stats["given_up"], stats["requeued"], stats["failed"]) == (1, 1, 2)
    assert stats["backoff_level"] > 0  # both failures count


def test_work_that_goes_on_after_the_handler_gives_up_when_it_fails(nsqd):
    failures: list[BaseException | None] = []
    held: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        held.append(message)

    with reading([nsqd], handler, max_attempts=1, on_giving_up=lambda each: failures.append(each.failure)) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: held)
        error = KeyError("later")
        held[0].fail(error)
        assert until(peer, b"FIN")[-1] == b"FIN " + ID % 1
        gevent.spawn(answer_cls, peer)
    assert failures == [error]
    assert reader.stats()["given_up"] == 1


@pytest.mark.parametrize(
    ("error", "given_up"),
    [(Requeue(), True), (Requeue(0, backoff=False), True), (gevent.GreenletExit(), False)],
    ids=["with backoff", "without", "killed"],
)
def test_what_else_ends_the_last_delivery(nsqd, error, given_up):
    reasons: list[str] = []

    def handler(message: Message) -> None:
        raise error

    bury = lambda message: reasons.append(open_envelope(make_envelope(message)).reason)  # noqa: E731
    with reading([nsqd], handler, max_attempts=1, on_giving_up=bury) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)
        assert until(peer, b"FIN" if given_up else b"REQ")
        wait_for(lambda: reader.stats()["finished"] + reader.stats()["requeued"])
        assert reader.stats()["failed"] == (error.args == (None, True))
        gevent.spawn(answer_cls, peer)
    assert [reason.startswith("gnsq_like.errors.Requeue: the handler asked for") for reason in reasons] == (
        [True] if given_up else []
    )


def test_a_last_delivery_whose_time_is_over_is_given_up_at_the_next(nsqd):
    """Given up now, it would be given up twice, because nsqd delivers it again."""
    letters: list[tuple[int, str]] = []

    def handler(message: Message) -> None:
        wait_for(lambda: message.is_lost)
        raise ValueError("late")

    bury = lambda message: letters.append((message.attempts, str(message.failure)))  # noqa: E731
    with reading([nsqd], handler, max_attempts=1, on_giving_up=bury) as reader:
        peer = serve(nsqd, msg_timeout=50)
        peer.messages(ID % 1)
        wait_for(lambda: reader.stats()["failed"])
        assert letters == []
        peer.messages(ID % 1, attempts=2)
        wait_for(lambda: letters)
        gevent.spawn(answer_cls, peer)
    [(attempts, text)] = letters
    assert attempts == 2
    assert text.startswith("delivered 2 times; the delivery before this one ended")


def test_giving_up_that_fails_requeues_and_reports(nsqd):
    errors: list[NSQError] = []

    def on_giving_up(message):
        raise OSError("disk full")

    reader = reading(
        [nsqd], print, max_attempts=1, on_giving_up=on_giving_up, on_error=lambda _, error: errors.append(error)
    )
    with reader:
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        *before, answer = until(peer, b"REQ")
        assert all(line.startswith(b"RDY") for line in before)
        assert answer == b"REQ " + ID % 1 + b" 180000"
        gevent.spawn(answer_cls, peer)
    assert "disk full" in str(errors[0])
    assert reader.stats()["backoff_level"] == 0


@pytest.mark.parametrize(
    "options", [{"max_attempts": 1, "on_giving_up": "block"}, {"max_age": 1e-3, "on_expired": "block"}]
)
def test_a_loop_that_is_killed_while_it_gives_up_requeues_the_message(nsqd, options):
    began = Event()

    def block(message):
        began.set()
        Event().wait()

    hooks = {name: block if value == "block" else value for name, value in options.items()}
    with reading([nsqd], None, **hooks) as reader:
        looping = gevent.spawn(list, reader)
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        assert began.wait(PATIENCE)
        looping.kill()
        until(peer, b"REQ " + ID % 1)
        wait_for(lambda: reader.stats()["in_flight"] == 0)
        gevent.spawn(answer_cls, peer)


def test_giving_up_may_answer_later(nsqd):
    given_up: list[Message] = []

    def on_giving_up(message):
        message.enable_async()
        given_up.append(message)

    with reading([nsqd], print, max_attempts=1, on_giving_up=on_giving_up) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        wait_for(lambda: given_up)
        assert reader.stats()["in_flight"] == 1
        given_up[0].finish()
        until(peer, b"FIN " + ID % 1)
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("form", ["handler", "batch", "pulled"])
def test_raising_after_enable_async_requeues_in_every_form(form):
    attempts: list[int] = []

    def fail_once(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            message.enable_async()
            raise RuntimeError("meant")

    handlers: dict[str, Any] = {
        "handler": fail_once,
        "batch": Batch(lambda batch: fail_once(batch[0]), size=1),
        "pulled": None,
    }
    options: dict[str, Any] = {"default_requeue_delay": 0, "max_backoff_duration": 0}
    with running_nsqd("ours") as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        with Reader("t", "c", handlers[form], nsqd_tcp_addresses=nsqd.tcp_address, **options) as reader:
            if form == "pulled":
                for message in reader:
                    try:
                        with message:
                            fail_once(message)
                    except RuntimeError:
                        continue
                    break
            wait_for(lambda: reader.stats()["finished"] == 1)
    assert attempts == [1, 2]


#: What makes a Reader of such a handler, by how the handler is called.
FORMS: dict[str, Callable[[Callable[[object], Any]], tuple[Any, dict[str, Any]]]] = {
    "handler": lambda handler: (handler, {}),
    "batch": lambda handler: (Batch(handler, size=1), {}),
    "thread": lambda handler: (handler, {"spawn": "thread"}),
    "batch in a thread": lambda handler: (Batch(handler, size=1), {"spawn": "thread"}),
    "giving up": lambda handler: (print, {"on_giving_up": handler, "max_attempts": 1}),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_exception_is_a_failure_all_the_same(nsqd, form, caplog):
    """Requeued without a delay, the message would come back until its attempts are used up."""

    def handler(_: object) -> None:
        raise asyncio.CancelledError("meant")

    handler, options = FORMS[form](handler)
    with reading([nsqd], handler, **options):
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        lines = until(peer, b"REQ")
        assert lines[-1] == b"REQ " + ID % 1 + b" 180000"
        assert (b"RDY 0" in lines) == (form != "giving up")
        gevent.spawn(answer_cls, peer)
    assert "meant" in caplog.text


@pytest.mark.parametrize("form", ["handler", "batch"])
def test_killing_a_handler_ends_its_greenlet_and_not_the_work(nsqd, form):
    workers: list[Any] = []

    def hang_once(_: object) -> None:
        workers.append(gevent.getcurrent())
        if len(workers) == 1:
            Event().wait()

    handler, options = FORMS[form](hang_once)
    with reading([nsqd], handler, **options):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: workers)
        workers[0].kill(timeout=PATIENCE)
        assert workers[0].dead
        assert until(peer, b"REQ")[-1] == b"REQ " + ID % 1 + b" 0"
        peer.messages(ID % 1, attempts=2)
        until(peer, b"FIN " + ID % 1)
        gevent.spawn(answer_cls, peer)


async def asynchronous(_: object) -> None: ...


def seemingly_blocking(given: object) -> object:
    return asynchronous(given)


@pytest.mark.parametrize("form", FORMS)
def test_a_handler_that_nothing_runs_is_refused(form):
    def reading_form(function: Callable[[object], object]) -> Reader:
        handler, options = FORMS[form](function)
        return reading([], handler, lookupd_http_addresses="127.0.0.1:1", **options)

    reading_form(seemingly_blocking)
    with pytest.raises(InvalidOption, match="async def"):
        reading_form(asynchronous)


class Later:
    """As a Future or a Task: its result comes later, if anything awaits it."""

    def __init__(self, _: object) -> None: ...

    def __await__(self) -> Iterator[None]:
        raise AssertionError("nothing awaits it")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (seemingly_blocking, "it returned a coroutine, asynchronous, which nothing awaits or runs"),
        (Later, "it returned a Later, which nothing awaits"),
    ],
)
def test_a_handler_that_returns_what_is_not_awaited_has_failed(nsqd, form, function, text, caplog):
    """A decorator may hide that the function below is asynchronous. A coroutine that is not closed gives a warning."""
    handler, options = FORMS[form](function)
    with reading([nsqd], handler, **options):
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        assert until(peer, b"REQ")[-1] == b"REQ " + ID % 1 + b" 180000"
        gevent.spawn(answer_cls, peer)
    assert text in caplog.text


#: Forms of a handler that notes what it gets, and iteration.
TAKERS: dict[str, Callable[[list[Message]], tuple[Any, dict[str, Any]]]] = {
    "handler": lambda seen: (seen.append, {}),
    "thread": lambda seen: (seen.append, {"spawn": "thread"}),
    "batch": lambda seen: (Batch(seen.extend, size=1), {}),
    "batch in a thread": lambda seen: (Batch(seen.extend, size=1), {"spawn": "thread"}),
    "pulled": lambda seen: (None, {}),
}


@pytest.mark.parametrize("form", TAKERS)
def test_a_message_that_is_too_old_is_not_handled(form):
    handled: list[Message] = []
    expired: list[Message] = []

    def loop(reader: Reader) -> None:
        for message in reader:
            with message:
                handled.append(message)

    handler, options = TAKERS[form](handled)
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        reader = Reader(
            "t",
            "c",
            handler,
            nsqd_tcp_addresses=nsqd.tcp_address,
            max_age=0.001,
            max_in_flight=10,
            on_expired=expired.append,
            **options,
        )
        producer.publish("t", b"old", defer=0.01)
        with reader:
            looping = gevent.spawn(loop, reader) if handler is None else None
            wait_for(lambda: reader.stats()["finished"] == 1)
            stats = reader.stats()
        if looping is not None:
            looping.get(timeout=PATIENCE)
    assert handled == []
    assert [message.body for message in expired] == [b"old"]
    assert (stats["expired"], stats["given_up"], stats["requeued"]) == (1, 0, 0)


@pytest.mark.parametrize("form", ["handler", "batch"])
def test_a_message_that_is_young_enough_is_handled(form):
    handled: list[Message] = []
    handler, options = TAKERS[form](handled)
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.publish("t", b"new")
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, max_age=3600.0, **options) as reader:
            wait_for(lambda: reader.stats()["finished"] == 1)
    assert [message.body for message in handled] == [b"new"]
    assert reader.stats()["expired"] == 0


def test_a_message_may_become_too_old_while_it_waits_for_its_batch(monkeypatch: pytest.MonkeyPatch):
    """The age counts when the handler would begin. The clock is moved by what is handled first."""
    handled: list[str] = []
    now = 1_500_000_000.0
    source = Source()
    batch = Batch(lambda messages: handled.extend(message.id for message in messages), size=2)
    reader = Reader("t", "c", batch, nsqd_tcp_addresses="127.0.0.1:1", max_age=10.0)
    monkeypatch.setattr(time, "time", lambda: now)
    handlers = Handlers(reader._setup, lambda: False, ControlLoop("t/c", lambda: None))
    handlers.put([make_message(message_id=b"a" * 16, source=source, received_at=time.monotonic())])
    wait_for(lambda: handlers.waiting == 1 and not handlers._workers.waiting)
    now += 60.0
    handlers.put([make_message(message_id=b"b" * 16, source=source, received_at=time.monotonic())])
    wait_for(lambda: len(source.answers) == 2)
    assert sorted(source.ids("EXPIRED")) == ["a" * 16, "b" * 16]
    assert handled == []
    handlers.kill()


def test_an_expiry_that_fails_requeues_and_reports(nsqd):
    errors: list[NSQError] = []

    def on_expired(message: Message) -> None:
        raise OSError("disk full")

    reader = reading([nsqd], print, max_age=1.0, on_expired=on_expired, on_error=lambda _, error: errors.append(error))
    with reader:
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        assert until(peer, b"REQ")[-1] == b"REQ " + ID % 1 + b" 180000"
        gevent.spawn(answer_cls, peer)
    assert "on_expired failed" in str(errors[0])
    assert reader.stats()["backoff_level"] == 0


def test_an_old_message_with_too_many_attempts_is_given_up(nsqd):
    given_up: list[Message] = []
    with reading([nsqd], print, max_age=1.0, max_attempts=1, on_giving_up=given_up.append) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        until(peer, b"FIN")
        gevent.spawn(answer_cls, peer)
    assert len(given_up) == 1
    assert (reader.stats()["given_up"], reader.stats()["expired"]) == (1, 0)
