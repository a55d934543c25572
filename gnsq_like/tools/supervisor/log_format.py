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
        # The master writes nothing but its own lines, so their logger is of no interest.
        name = "" if who == MASTER else "%(name)s: "
        return logging.Formatter(f"%(asctime)s %(levelname)-7s {who:<9} {name}%(message)s")
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


def configure(formatter: logging.Formatter, level: str) -> None:
    """Log to stderr from now on. Modules that configure logging afterwards may replace this."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
