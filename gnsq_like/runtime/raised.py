"""Exceptions of the user's code in the log: one line with what was raised and where, the traceback where it is wanted.

A failing handler may fail for each message, and a traceback for each buries everything else. The line has the type, the
text, and the place: the innermost frame outside this package, because an error that is raised in here was caused by the
line that called into it. The traceback follows as a record of its own at DEBUG, or is part of the line's record if the
option ``log_tracebacks`` is set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType

_PACKAGE = __name__.partition(".")[0]
#: Characters of an exception's text; the traceback has all of it.
_LONGEST = 500


def in_one_line(exc: BaseException) -> str:
    """Type, text and place of an exception: ``ValueError: no user (/srv/clicks/handler.py:12, in store)``."""
    return f"{_what(exc)}{_where(exc.__traceback__)}"


def log_raised(
    logger: logging.Logger,
    level: int,
    text: str,
    exc: BaseException,
    *,
    traceback: bool = False,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Log that ``exc`` was raised: ``text``, followed by it in one line. Switches only as handlers of the log do.

    :param traceback: whether the traceback belongs to this record; otherwise it is logged at DEBUG
    :param extra: further fields of the record
    """
    logger.log(level, "%s: %s", text, in_one_line(exc), exc_info=exc if traceback else None, extra=extra, stacklevel=2)
    if not traceback and logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s; the traceback:", text, exc_info=exc, extra=extra, stacklevel=2)


def _what(exc: BaseException) -> str:
    cls = type(exc)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    try:
        text = str(exc)
    except Exception:
        text = "<its text cannot be made>"
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return f"{name}: {text}" if text else name


def _where(traceback: TracebackType | None) -> str:
    place = ""
    while traceback is not None:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__")).partition(".")[0] != _PACKAGE:
            code = frame.f_code
            place = f" ({code.co_filename}:{traceback.tb_lineno}, in {code.co_qualname})"
        traceback = traceback.tb_next
    return place
