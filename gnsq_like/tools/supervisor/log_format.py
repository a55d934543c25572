"""The log of a supervisor's processes: lines that say which process wrote them, or JSON."""

from __future__ import annotations

import logging
import sys

from gnsq_like.errors import NSQError

#: What the supervisor itself is called.
MASTER = "master"
#: Level names of commands.
LEVELS = ("debug", "info", "warning", "error")


def make_formatter(who: str, *, as_json: bool) -> logging.Formatter:
    """A formatter for one process.

    :param who: its name, as "worker 1"
    :raises NSQError: when the package for JSON is not installed
    """
    if not as_json:
        return _TextFormatter(who, on_terminal=sys.stderr.isatty())
    try:
        from pythonjsonlogger.json import JsonFormatter
    except ModuleNotFoundError as exc:
        raise NSQError('python-json-logger is not installed: pip install "gnsq-like[cli]"') from exc
    return JsonFormatter(
        "{levelname}{name}{process}{message}",
        style="{",
        rename_fields={"levelname": "level", "name": "logger", "process": "pid"},
        static_fields={"worker": who},
        timestamp="time",
    )


class _TextFormatter(logging.Formatter):
    """Lines for people: time, level, process, logger, text; on a terminal without the date."""

    def __init__(self, who: str, *, on_terminal: bool) -> None:
        line = f"%(asctime)s %(levelname)-7s {who:<9} %(message)s"
        super().__init__(line, "%H:%M:%S" if on_terminal else None)
        # The master writes nothing but its own lines, so their logger is of no interest.
        self._unnamed = ("gnsq_like.",) if on_terminal or who == MASTER else ()

    def formatMessage(self, record: logging.LogRecord) -> str:
        if not record.name.startswith(self._unnamed):
            record.message = f"{record.name}: {record.message}"
        return super().formatMessage(record)


def configure(formatter: logging.Formatter, level: str) -> None:
    """Log to stderr from now on. Modules that configure logging afterwards may replace this."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
