"""The log of a command on stderr."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import datetime

import click

from gnsq_like.cli.tool_options import Function, option


class NSQFormatter(logging.Formatter):
    """NSQ's log lines: prefix, date, time, level, text."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created)
        return f"{self._prefix}{when:%Y/%m/%d %H:%M:%S.%f} {record.levelname}: {record.message}"


class OneLineFormatter(NSQFormatter):
    """The same, with an exception's text in place of its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        record.message = record.getMessage() + (f": {error or type(error).__name__}" if error else "")
        return self.formatMessage(record)


def log_to_stderr(level: str, prefix: str, *, with_tracebacks: bool = True) -> None:
    """Write gnsq_like's log to stderr, from ``level`` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(NSQFormatter(prefix) if with_tracebacks else OneLineFormatter(prefix))
    log = logging.getLogger("gnsq_like")
    log.addHandler(handler)
    log.setLevel(level.upper())


def logs(name: str) -> Callable[[Function], Function]:
    """A decorator: a tool that runs as a service logs, and has ``--log-level`` and ``--log-prefix``."""

    def add(function: Function) -> Function:
        @functools.wraps(function)
        def command(*, verbose: bool, log_level: str, log_prefix: str, **values: object) -> object:
            log_to_stderr("debug" if verbose else log_level, log_prefix, with_tracebacks=verbose)
            return function(**values)

        command = option("--log-prefix", default=f"[{name}] ", show_default=False, help="Beginning of each log line.")(
            command
        )
        levels = click.Choice(["debug", "info", "warn", "error", "fatal"], case_sensitive=False)
        return option("--log-level", type=levels, default="info", help="Lowest level to log.")(command)

    return add
