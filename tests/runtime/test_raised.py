"""An exception in one line: its type, its text, and where it was raised."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress
from gnsq_like.runtime.raised import in_one_line, log_raised

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


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
@pytest.mark.parametrize("traceback", [False, True])
def test_the_traceback_is_logged_where_it_is_wanted(
    level: int, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level)
    log_raised(logger, logging.WARNING, "it failed", caught(ValueError("x")), traceback=traceback, extra={"topic": "t"})
    first, *others = caplog.records
    assert (first.levelname, bool(first.exc_info)) == ("WARNING", traceback)
    assert re.fullmatch(r"it failed: ValueError: x \(.*\)", first.getMessage())
    assert [(each.levelname, bool(each.exc_info)) for each in others] == (
        [("DEBUG", True)] if level == logging.DEBUG and not traceback else []
    )
    assert {vars(each)["topic"] for each in caplog.records} == {"t"}
    assert {each.pathname for each in caplog.records} == {HERE}
