"""Code of the user: what is refused, what is found undone, and what the log says of its errors."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import re
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress, InvalidOption
from gnsq_like.runtime.user_code import MINUTE, FailureLog, check_callable, in_one_line, undone


async def asynchronous(message: object) -> None: ...


def generator(message: object) -> Iterator[object]:
    yield message


async def asynchronous_generator(message: object) -> AsyncIterator[object]:
    yield message


def two(first: object, second: object) -> None: ...


def one_and_keywords(message: object, *, timeout: float = 1.0) -> None: ...


class Methods:
    async def asynchronous(self, message: object) -> None: ...

    def generator(self, message: object) -> Iterator[object]:
        yield message

    def plain(self, message: object) -> None: ...

    @staticmethod
    def static(message: object) -> None: ...

    @classmethod
    async def asynchronous_of_class(cls, message: object) -> None: ...


class CallableAsync:
    async def __call__(self, message: object) -> None: ...


class CallableGenerator:
    def __call__(self, message: object) -> Iterator[object]:
        yield message


class CallablePlain:
    def __call__(self, message: object) -> None: ...


class Work:
    """A class as a handler: each message makes an object."""

    def __init__(self, message: object) -> None: ...


def with_database(function: Callable[[object, object], None]) -> Callable[[object], None]:
    @functools.wraps(function)
    def wrapper(message: object) -> None:
        function(message, "database")

    return wrapper


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("text", "it must be callable"),
        (asynchronous, "an async def function"),
        (generator, "a generator function"),
        (asynchronous_generator, "an async generator function"),
        (lambda message: (yield), "a generator function"),
        (Methods().asynchronous, "an async def function"),
        (Methods.asynchronous_of_class, "an async def function"),
        (Methods().generator, "a generator function"),
        (CallableAsync(), "an async def function"),
        (CallableGenerator(), "a generator function"),
        (functools.partial(asynchronous), "an async def function"),
        (functools.partial(functools.partial(CallableAsync())), "an async def function"),
        (functools.partial(Methods().generator), "a generator function"),
        (two, "1 positional argument: missing a required argument: 'second'"),
        (lambda: None, "1 positional argument: too many positional arguments"),
        (lambda *, message: None, "1 positional argument"),
        (Methods.plain, "1 positional argument"),
        (functools.partial(two, 1, 2), "1 positional argument"),
        (functools.partial(two, *[1, 2, 3]), "1 positional argument"),
        (object, "1 positional argument"),
    ],
)
def test_a_function_that_could_not_work_is_refused(function: object, reason: str) -> None:
    with pytest.raises(InvalidOption, match=r"invalid option handler=") as caught:
        check_callable("handler", function, 1)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        print,
        [].append,
        deque().append,
        dict,
        int,
        one_and_keywords,
        with_database(two),
        functools.partial(two, 1),
        functools.partial(two, second=1),
        Methods().plain,
        Methods.static,
        CallablePlain(),
        Work,
        Mock(),
        lambda *arguments: None,
        lambda message, retries=3: None,
    ],
)
def test_every_other_function_is_accepted(function: Callable[[Any], object]) -> None:
    check_callable("handler", function, 1)


def test_the_number_of_arguments_is_what_the_call_has() -> None:
    check_callable("on_error", two, 2)
    with pytest.raises(InvalidOption, match=r"on_error.* 2 positional arguments: too many"):
        check_callable("on_error", Methods().plain, 2)
    check_callable("on_error", Methods().plain, None)


@pytest.mark.parametrize("function", [asynchronous, generator, asynchronous_generator])
def test_what_nothing_has_run_is_noticed_and_closed(function: Callable[[object], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fault = undone(function(1))
        gc.collect()  # a coroutine that was not closed would warn here
    assert fault is not None
    assert function.__name__ in fault


def test_a_future_is_not_what_it_will_bring() -> None:
    with closing(asyncio.new_event_loop()) as loop:
        fault = undone(loop.create_future())
    assert fault is not None
    assert "it returned a Future, which nothing awaits" in fault


@pytest.mark.parametrize("result", [None, True, 0, "text", [1], iter([1]), Mock(), MagicMock(), open])
def test_any_other_result_is_one(result: object) -> None:
    assert undone(result) is None


logger = logging.getLogger("gnsq_like.test")
HERE = str(Path(__file__))


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("meant")


def caught(exc: BaseException) -> BaseException:
    def inner() -> None:
        raise exc

    try:
        inner()
    except BaseException as raised:
        return raised
    raise AssertionError


@pytest.mark.parametrize(
    ("exc", "what"),
    [
        (ValueError("no user"), "ValueError: no user"),
        (ValueError(), "ValueError"),
        (ValueError("two\nlines\r\n and\ttabs"), "ValueError: two lines and tabs"),
        (ValueError("x" * 501), "ValueError: " + "x" * 500 + "..."),
        (Speechless(), "test_user_code.Speechless: <its text cannot be made>"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (InvalidAddress("x", "meant"), "gnsq_like.errors.InvalidAddress: "),
    ],
)
def test_type_text_and_place_are_one_line(exc: BaseException, what: str) -> None:
    line = in_one_line(caught(exc))
    assert what in line
    assert "\n" not in line
    assert re.search(rf" \({re.escape(HERE)}:\d+, in caught\.<locals>\.inner\)$", line)


def test_the_place_of_an_error_raised_in_the_package_is_the_call_into_it() -> None:
    try:
        parse_address("no port")
    except InvalidAddress as exc:
        line = in_one_line(exc)
    assert re.search(rf"\({re.escape(HERE)}:\d+, in test_the_place", line)


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert in_one_line(ValueError("x")) == "ValueError: x"


def levels(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    """Of the records since the last call: the level, and whether there is a traceback."""
    found = [(record.levelname, bool(record.exc_info)) for record in caplog.records]
    caplog.clear()
    return found


FULL, LINE = ("ERROR", True), ("WARNING", False)


def test_the_first_failure_of_a_kind_in_a_minute_has_its_traceback_others_a_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    failures = FailureLog(logger)
    for seconds in (0.0, 1.0, MINUTE - 0.1):
        now = 1000.0 + seconds
        failures.log("it failed", caught(ValueError("x")), {"topic": "t"})
    texts = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"it failed: ValueError: x \(.*\)", texts[0])
    assert [text.removeprefix(texts[0]) for text in texts[1:]] == [
        "; number 2 of these within a minute",
        "; number 3 of these within a minute",
    ]
    assert {vars(each)["topic"] for each in caplog.records} == {"t"}
    assert {each.pathname for each in caplog.records} == {HERE}
    assert levels(caplog) == [FULL, LINE, LINE]
    now = 1000.0 + MINUTE
    for _ in range(2):
        failures.log("it failed", caught(ValueError("x")))
    assert levels(caplog) == [FULL, LINE]


def test_a_kind_is_a_type_and_a_place(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(logger)
    for exc in (ValueError("x"), KeyError("x"), ValueError("y")):
        failures.log("it failed", caught(exc))
    failures.log("it failed", ValueError("raised nowhere"))
    assert levels(caplog) == [FULL, FULL, LINE, FULL]


def test_each_has_its_traceback_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(logger, every=True)
    for _ in range(3):
        failures.log("it failed", caught(ValueError("x")))
    assert levels(caplog) == [FULL] * 3


def test_places_without_end_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(logger)
    for number in range(3000):
        failures.log("it failed", caught(type(f"Error{number}", (Exception,), {})()))
    assert len(failures._kinds) == 1000
