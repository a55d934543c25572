"""docs/logging.rst: its loggers and fields are those that there are, and its examples run."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.runtime.raised import log_raised
from tests.support.messages import make_message
from tests.support.pages import blocks, page, section
from tests.support.scripts import run_script

PAGE = page("logging.rst")
PACKAGE = Path(__file__).resolve().parents[2] / "gnsq_like"
#: Rooms of the client, whose loggers the page lists.
ROOMS = [
    ".",
    "connection",
    "discovery",
    "http",
    "options",
    "policy",
    "producer",
    "reader",
    "runtime",
    "transport",
    "wire",
]


def loggers() -> list[str]:
    paths = [path for room in ROOMS for path in (PACKAGE / room).glob("*.py") if path.name != "__init__.py"]
    found = [path for path in paths if "logging.getLogger(__name__)" in path.read_text()]
    return sorted(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in found)


def test_the_loggers_are_those_that_there_are() -> None:
    assert sorted(re.findall(r"^``(gnsq_like\.[\w.]+)``", section(PAGE, "Loggers"), re.MULTILINE)) == loggers()


def test_the_fields_are_those_of_a_record() -> None:
    listed = re.findall(r"^``(\w+)``  ", section(PAGE, "Failures"), re.MULTILINE)
    assert sorted(listed) == sorted(make_message()._fields())


def test_the_line_of_a_failure_looks_like_that(caplog: pytest.LogCaptureFixture) -> None:
    shown = re.search(r"^    (WARNING .*)$", PAGE, re.MULTILINE)
    assert shown
    try:
        raise ValueError("no such user")
    except ValueError as exc:
        log_raised(logging.getLogger("gnsq_like.reader.handlers"), logging.WARNING, "it failed", exc)
    assert re.sub(r"\(.*", "", caplog.messages[0].removeprefix("it failed")) in shown[1]


def test_the_examples_run() -> None:
    examples = blocks(PAGE)
    assert len(examples) == 2
    for example in examples:
        assert run_script(example) == []


def test_the_filter_lets_one_topic_pass() -> None:
    namespace: dict[str, Any] = {}
    example = next(each for each in blocks(PAGE) if "addFilter" in each)
    exec(example.partition("handler =")[0], namespace)
    record = logging.makeLogRecord({"topic": "clicks"})
    assert namespace["of_clicks"](record)
    assert not namespace["of_clicks"](logging.makeLogRecord({"topic": "other"}))
    assert not namespace["of_clicks"](logging.makeLogRecord({}))
