"""The hooks about messages: what each is called with, in every form of a handler, and that none costs a message."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Batch, Message, Producer, Reader, Requeue
from gnsq_like.errors import InvalidOption, NSQError
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.peer import ScriptedNsqd
from tests.support.reading import ID, Gate, answer_cls, ignore, reading, serve, until

NAMES = ["on_finish", "on_requeue", "on_failure", "on_timeout"]


class Notes:
    """What the hooks were called with, by hook: the ids and the rest."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    @property
    def hooks(self) -> dict[str, Any]:
        return {
            "on_finish": lambda message: self.calls.append(("finish", message.id)),
            "on_requeue": lambda message, delay: self.calls.append(("requeue", message.id, delay)),
            "on_failure": lambda message, error: self.calls.append(("failure", message.id, repr(error))),
            "on_timeout": lambda message: self.calls.append(("timeout", message.id)),
        }


def fails(raised: BaseException) -> Callable[[object], object]:
    def handler(_: object) -> None:
        raise raised

    return handler


#: What makes a Reader of a function of a message, by how that is called.
FORMS: dict[str, Callable[[Callable[[Any], None]], tuple[Any, dict[str, Any]]]] = {
    "handler": lambda handler: (handler, {}),
    "thread": lambda handler: (handler, {"spawn": "thread"}),
    "batch": lambda handler: (Batch(lambda messages: handler(messages[0]), size=1), {}),
    "batch in a thread": lambda handler: (Batch(lambda messages: handler(messages[0]), size=1), {"spawn": "thread"}),
}
ONE = (ID % 1).decode()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("handler", "calls"),
    [
        (lambda message: None, [("finish", ONE)]),
        (lambda message: message.finish(), [("finish", ONE)]),
        (lambda message: message.requeue(3), [("requeue", ONE, 3)]),
        (lambda message: False, [("failure", ONE, "NSQError('the handler returned False')"), ("requeue", ONE, 90.0)]),
        (fails(ValueError("x")), [("failure", ONE, "ValueError('x')"), ("requeue", ONE, 90.0)]),
        (fails(asyncio.CancelledError()), [("failure", ONE, "CancelledError()"), ("requeue", ONE, 90.0)]),
        (fails(Requeue(delay=7)), [("requeue", ONE, 7)]),
        (fails(gevent.GreenletExit()), [("requeue", ONE, 0)]),
    ],
    ids=["returns", "finishes", "requeues", "False", "raises", "no Exception", "Requeue", "killed"],
)
def test_what_becomes_of_a_message(nsqd: ScriptedNsqd, form: str, handler: Any, calls: list[tuple[Any, ...]]) -> None:
    notes = Notes()
    given, options = FORMS[form](handler)
    with reading([nsqd], given, **options, **notes.hooks):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: len(notes.calls) == len(calls))
        gevent.spawn(answer_cls, peer)
    assert sorted(notes.calls) == sorted(calls)


def test_a_failure_after_the_answer_is_one_all_the_same(nsqd: ScriptedNsqd) -> None:
    notes = Notes()

    def handler(message: Message) -> None:
        message.finish()
        raise ValueError("x")

    with reading([nsqd], handler, **notes.hooks):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: len(notes.calls) == 2)
        gevent.spawn(answer_cls, peer)
    assert sorted(notes.calls) == [("failure", ONE, "ValueError('x')"), ("finish", ONE)]


def test_a_message_that_fails_in_a_loop(nsqd: ScriptedNsqd) -> None:
    notes = Notes()
    reader = reading([nsqd], None, **notes.hooks)

    def loop() -> str:
        try:
            for message in reader:
                with message:
                    raise ValueError("meant")
        except ValueError as exc:
            return str(exc)
        return ""

    loops = gevent.spawn(loop)
    peer = serve(nsqd)
    peer.messages(ID % 1)
    until(peer, b"REQ")
    assert loops.get(timeout=60) == "meant"
    gevent.spawn(answer_cls, peer)
    reader.stop()
    assert sorted(notes.calls) == [("failure", ONE, "ValueError('meant')"), ("requeue", ONE, 90.0)]


def test_one_that_is_given_up_or_too_old_is_finished(nsqd: ScriptedNsqd) -> None:
    notes = Notes()
    with reading([nsqd], ignore, max_attempts=1, max_age=1, **notes.hooks):
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=2)
        peer.messages(ID % 2)  # published long ago
        wait_for(lambda: len(notes.calls) == 2)
        gevent.spawn(answer_cls, peer)
    assert notes.calls == [("finish", (ID % number).decode()) for number in (1, 2)]


def test_an_answer_after_the_end_of_the_connection_calls_no_hook(nsqd: ScriptedNsqd) -> None:
    notes, gate = Notes(), Gate()
    with reading([nsqd], gate, max_redial_delay=60, **notes.hooks) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: gate.inside == 1)
        peer.close()
        wait_for(lambda: not reader.stats()["connections"])
        gate.open.set()
        wait_for(lambda: reader.stats()["lost"] == 1)
    assert notes.calls == []


def test_a_handler_still_at_work_when_the_time_is_over(nsqd: ScriptedNsqd) -> None:
    """One that is in time, even if only just, one that touches its message, and one that is late."""
    notes = Notes()
    gates = {(ID % number).decode(): Event() for number in (1, 2, 3)}
    began: dict[str, Message] = {}

    def handler(message: Message) -> None:
        began[message.id] = message
        gates[message.id].wait()

    with reading([nsqd], handler, max_in_flight=3, max_backoff_duration=0, **notes.hooks):
        peer = serve(nsqd, msg_timeout=1000)
        peer.messages(*(ID % number for number in (1, 2, 3)))
        wait_for(lambda: len(began) == 3)
        in_time, touched, late = began.values()
        wait_for(lambda: all(message.is_overdue for message in began.values()))  # a tenth before the deadline
        deadline = in_time.timeout_at
        gates[in_time.id].set()
        touched.touch()
        wait_for(lambda: in_time.answer)
        stood_still = time.monotonic() >= deadline
        wait_for(lambda: ("timeout", late.id) in notes.calls)
        stood_still = stood_still or time.monotonic() >= touched.timeout_at
        timed_out = [message_id for name, message_id, *_ in notes.calls if name == "timeout"]
        for gate in gates.values():
            gate.set()
        gevent.spawn(answer_cls, peer)
    assert timed_out == [late.id] or stood_still


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_that_raise_cost_no_message(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    hook = fails(RuntimeError("the hook is broken"))
    hooks: dict[str, Any] = {name: (lambda *_: hook(None)) for name in NAMES}

    def handler(message: Message) -> None:
        if message.attempts == 1:
            raise ValueError("meant")

    options: dict[str, Any] = {"max_in_flight": 10, "default_requeue_delay": 0, "max_backoff_duration": 0}
    with running_nsqd(kind) as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.multi_publish("t", [b"%d" % number for number in range(50)])
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, **options, **hooks) as reader:
            wait_for(lambda: reader.stats()["finished"] == 50)
    assert reader.stats()["requeued"] == 50
    broken = [record for record in caplog.records if "the hook is broken" in record.getMessage()]
    assert len(broken) == 150
    first, *others = broken
    assert first.levelname == "ERROR"
    assert first.exc_info is not None
    assert {(record.levelname, record.exc_info) for record in others} == {("WARNING", None)}


async def asynchronous(*_: object) -> None: ...


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hook", [asynchronous, lambda: None, "name"])
def test_a_hook_that_could_do_nothing_is_refused(name: str, hook: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150", **{name: hook})


def test_hooks_of_another_thread(nsqd: ScriptedNsqd) -> None:
    """What is answered, or fails, in another thread is reported in the Reader's."""
    notes = Notes()
    main = threading.get_ident()
    seen: list[int] = []
    hooks = notes.hooks
    note = hooks["on_failure"]

    def on_failure(message: Message, error: BaseException) -> None:
        seen.append(threading.get_ident())
        note(message, error)

    hooks["on_failure"] = on_failure

    def elsewhere(message: Message) -> None:
        def work() -> None:
            with pytest.raises(NSQError), message:
                raise NSQError("meant")

        gevent.get_hub().threadpool.apply(work)

    with reading([nsqd], elsewhere, **hooks):
        peer = serve(nsqd)
        peer.messages(ID % 1)
        wait_for(lambda: len(notes.calls) == 2)
        gevent.spawn(answer_cls, peer)
    assert seen == [main]
