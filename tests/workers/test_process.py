"""Messages over the pipes between master and worker, and the lines of the log."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_like.workers.process import MASTER, LineReader, LineWriter, _TextFormatter, make_formatter


@pytest.fixture
def pipe() -> Iterator[tuple[LineReader, LineWriter]]:
    theirs, ours = os.pipe()
    os.set_blocking(theirs, False)
    reader, writer = LineReader(theirs), LineWriter(ours)
    yield reader, writer
    reader.close()
    writer.close()


def test_messages_arrive_in_their_order_and_then_the_end(pipe: tuple[LineReader, LineWriter]) -> None:
    reader, writer = pipe
    assert reader.read() == []
    writer.send("beat", messages=3)
    writer.send("stop", timeout=1.5)
    assert reader.read() == [{"is": "beat", "messages": 3}, {"is": "stop", "timeout": 1.5}]
    assert not reader.is_over
    writer.close()
    assert reader.read() == []
    assert reader.is_over


def test_a_message_that_comes_byte_by_byte(pipe: tuple[LineReader, LineWriter]) -> None:
    reader, writer = pipe
    found = []
    for byte in b'{"is": "beat"}\n{"is"':
        os.write(writer.descriptor, bytes([byte]))
        found += reader.read()
    assert found == [{"is": "beat"}]


@pytest.mark.parametrize("line", [b"print", b"\xff\xfe", b"[1]", b'{"is": 3}', b"{}", b""])
def test_what_is_no_message_is_ignored(pipe: tuple[LineReader, LineWriter], line: bytes) -> None:
    reader, writer = pipe
    os.write(writer.descriptor, line + b"\n")
    writer.send("beat")
    assert reader.read() == [{"is": "beat"}]


def test_a_pipe_that_is_not_read_holds_nobody_up_and_nothing_is_torn(pipe: tuple[LineReader, LineWriter]) -> None:
    reader, writer = pipe
    for number in range(100):
        writer.send("beat", number=number, text="x" * 5000)
    assert writer.is_behind
    found = []
    while writer.is_behind:
        found += reader.read()
        writer.flush()
    found += reader.read()
    assert [each["number"] for each in found] == list(range(100))


def test_a_message_larger_than_a_read(pipe: tuple[LineReader, LineWriter]) -> None:
    reader, writer = pipe
    writer.send("loaded", text="x" * 500_000)
    found: list[dict[str, Any]] = []
    while not found:
        found = reader.read()
        writer.flush()
    assert len(found[0]["text"]) == 500_000


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[LineReader, LineWriter]) -> None:
    reader, writer = pipe
    reader.close()
    writer.send("beat")
    assert not writer.is_behind


def record(text: str, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("shop.readers", logging.WARNING, __file__, 1, text, None, None)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_text_names_the_worker_and_the_logger() -> None:
    line = make_formatter("worker 3", as_json=False).format(record("slow"))
    assert line.endswith(" WARNING worker 3  shop.readers: slow")
    ours = record("slow", name="gnsq_like.workers.master")
    assert make_formatter(MASTER, as_json=False).format(ours).endswith(" WARNING master    slow")


def test_lines_on_a_terminal_are_short() -> None:
    formatter = _TextFormatter("worker 3", on_terminal=True)
    text = formatter.format(record("no connection", name="gnsq_like.reader.reader"))
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING worker 3  no connection", text)
    assert formatter.format(record("slow")).endswith(" worker 3  shop.readers: slow")


def test_json_has_all_fields_in_one_line() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info(), order=17)
    line = make_formatter("worker 3", as_json=True).format(failed)
    assert "\n" not in line
    found = json.loads(line)
    assert found["time"].startswith("20")
    assert found["exc_info"].endswith("ValueError: no\nway")
    assert {name: found[name] for name in ("level", "logger", "worker", "message", "order", "pid")} == {
        "level": "WARNING",
        "logger": "shop.readers",
        "worker": "worker 3",
        "message": "failed",
        "order": 17,
        "pid": failed.process,
    }
