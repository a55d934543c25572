"""Hooks and log records, in greenlets of their own: one after the other, and nothing waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.dispatcher import Dispatcher, HookRunner, flush_log, log_soon
from tests.support.daemons import wait_for
from tests.support.scripts import run_script

logger = logging.getLogger("gnsq_like.test_dispatcher")


def test_calls_are_made_in_order_and_not_at_once():
    seen: list[tuple[Any, ...]] = []
    hooks = HookRunner(each=lambda *arguments: seen.append((gevent.getcurrent(), arguments)))
    for number in range(5):
        hooks.call("each", number, "x")
    assert seen == []
    hooks.join(60)
    assert [arguments for _, arguments in seen] == [(number, "x") for number in range(5)]
    assert len({greenlet for greenlet, _ in seen}) == 1
    assert gevent.getcurrent() not in {greenlet for greenlet, _ in seen}


def test_no_hook_is_fine():
    hooks = HookRunner(none=None)
    hooks.call("none", 1)
    hooks.join(0)
    assert hooks._greenlet is None


def test_a_hook_that_blocks_delays_only_hooks():
    gate = Event()
    seen: list[int] = []
    hooks = HookRunner(block=gate.wait, note=seen.append)
    hooks.call("block")
    hooks.call("note", 1)
    hooks.join(0.001)
    assert seen == []
    gate.set()
    hooks.join(60)
    assert seen == [1]


@pytest.mark.parametrize("raised", [RuntimeError("meant"), gevent.Timeout(1), asyncio.CancelledError()])
def test_what_a_hook_raises_is_logged_and_the_next_is_called(raised, caplog):
    def fail():
        raise raised

    seen: list[int] = []
    hooks = HookRunner(fail=fail, note=seen.append)
    hooks.call("fail")
    hooks.call("note", 1)
    hooks.join(60)
    flush_log(60)
    assert seen == [1]
    assert "fail" in caplog.text


def test_a_hook_may_cause_further_calls_and_may_wait_for_them():
    seen: list[int] = []

    def first():
        hooks.call("note", 2)
        hooks.join(60)  # would be waiting for itself
        seen.append(1)

    hooks = HookRunner(first=first, note=seen.append)
    hooks.call("first")
    hooks.join(60)
    assert seen == [1, 2]


def test_the_greenlet_lives_only_while_there_are_calls():
    seen: list[int] = []
    hooks = HookRunner(note=seen.append)
    for number in range(3):
        hooks.call("note", number)
        wait_for(partial(seen.__contains__, number))
        wait_for(lambda: hooks._greenlet is None)


@pytest.mark.parametrize("hook", [3, "text", 0, False])
def test_what_is_not_callable_is_no_hook(hook):
    with pytest.raises(InvalidOption, match="on_error"):
        HookRunner(on_connect=None, on_error=hook)


def test_a_hook_that_could_not_work_is_refused():
    async def asynchronous(address: str) -> None: ...

    with pytest.raises(InvalidOption, match=r"on_connect.*async def"):
        HookRunner(on_connect=asynchronous)
    HookRunner(on_connect=print, on_error=None)
    with pytest.raises(InvalidOption, match=r"on_error.*2 positional arguments"):
        HookRunner({"on_error": 2}, on_error=lambda error: None)


def test_a_hook_that_returns_a_coroutine_is_reported(caplog):
    async def asynchronous() -> None: ...

    hooks = HookRunner(hidden=lambda: asynchronous())
    hooks.call("hidden")
    hooks.join(60)
    flush_log(60)
    assert "it returned a coroutine, " in caplog.text


@contextmanager
def handling(handler: logging.Handler) -> Iterator[None]:
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class Handler(logging.Handler):
    """A log handler that waits until its gate is open, or raises what it is to raise."""

    def __init__(self, raises: BaseException | None = None) -> None:
        super().__init__()
        self.gate = Event()
        self.texts: list[str] = []
        self.raises = raises

    def handle(self, record: logging.LogRecord) -> bool:
        raised, self.raises = self.raises, None
        if raised is not None:
            raise raised
        self.gate.wait()
        self.texts.append(record.getMessage())
        return True


def test_a_log_handler_that_waits_delays_only_the_log():
    handler = Handler()
    with handling(handler):
        log_soon(logger.warning, "%d", 1)
        log_soon(logger.warning, "%d", 2)
        flush_log(0.001)
        hooks = HookRunner(note=handler.gate.set)
        hooks.call("note")
        hooks.join(60)
        flush_log(60)
        assert handler.texts == ["1", "2"]


@pytest.mark.parametrize("raised", [RuntimeError("meant"), gevent.Timeout(1), asyncio.CancelledError()])
def test_what_a_log_handler_raises_is_printed_and_the_next_record_is_logged(raised, capfd):
    handler = Handler(raised)
    handler.gate.set()
    with handling(handler):
        log_soon(logger.warning, "%d", 1)
        log_soon(logger.warning, "%d", 2)
        flush_log(60)
        assert handler.texts == ["2"]
    assert type(raised).__name__ in capfd.readouterr().err


def test_records_that_do_not_fit_are_counted_and_the_count_is_logged(caplog):
    gate = Event()
    dispatcher = Dispatcher(most=3)
    dispatcher.call_soon(gate.wait)
    gevent.sleep(0)
    seen: list[int] = []
    for number in range(5):
        dispatcher.call_soon(seen.append, number)
    gate.set()
    dispatcher.join(60)
    assert seen == [0, 1, 2]
    assert "2 log records were dropped" in caplog.text


def test_a_thread_without_a_hub_logs_itself(caplog):
    gevent.get_hub().threadpool.apply(log_soon, (logger.warning, "of %s", "a thread"))
    assert "of a thread" in caplog.text


def test_what_waits_is_logged_before_the_program_ends():
    run = run_script(
        """
        import logging, sys
        from gnsq_like.runtime.dispatcher import log_soon
        import gevent
        gevent.get_hub()
        logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)
        log_soon(logging.getLogger("x").warning, "at the %s", "end")
        """
    )
    assert run == ["at the end"]
