"""An exception in one line: its type, its text, and where it was raised."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress
from gnsq_like.runtime.raised import MINUTE, FailureLog, in_one_line

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
        (Speechless(), "test_raised.Speechless: <its text cannot be made>"),
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


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def levels(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    """Of the records since the last call: the level, and whether there is a traceback."""
    found = [(record.levelname, bool(record.exc_info)) for record in caplog.records]
    caplog.clear()
    return found


FULL, LINE = ("ERROR", True), ("WARNING", False)


def test_the_first_failure_of_a_kind_in_a_minute_has_its_traceback_and_the_others_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    failures = FailureLog(logger, clock=clock)
    for seconds in (0.0, 1.0, MINUTE - 0.1):
        clock.now = 1000.0 + seconds
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
    clock.now = 1000.0 + MINUTE
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
