"""The lines of the log."""

from __future__ import annotations

import json
import logging
import re
import sys

from gnsq_like.tools.supervisor.log_format import MASTER, _TextFormatter, make_formatter


def record(text: str, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("shop.readers", logging.WARNING, __file__, 1, text, None, None)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_text_names_the_worker_and_the_logger() -> None:
    line = make_formatter("worker 3", as_json=False).format(record("slow"))
    assert line.endswith(" WARNING worker 3  shop.readers: slow")
    ours = record("slow", name="gnsq_like.tools.supervisor.master")
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
