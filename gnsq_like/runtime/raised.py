"""Exceptions of the user's code in the log: an error with its traceback, once a minute for each kind.

A failing handler may fail for each message, and a traceback for each buries everything else. The first failure of a
kind within a minute is an ERROR with ``exc_info``, which error trackers take for an event; each further one is a
WARNING of one line, with their number. A kind is a type of exception and a place: the innermost frame outside this
package, because an error that is raised in here was caused by the line that called into it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType

from gnsq_like.runtime.clock import monotonic

_PACKAGE = __name__.partition(".")[0]
#: Characters of an exception's text; the traceback has all of it.
_LONGEST = 500

#: Seconds in which further failures of a kind have no traceback.
MINUTE = 60.0
#: Kinds that are remembered; a place has few, but a text that is compiled anew each time has a new one each time.
_MOST_KINDS = 1000


def in_one_line(exc: BaseException) -> str:
    """Type, text and place of an exception: ``ValueError: no user (/srv/clicks/handler.py:12, in store)``."""
    return f"{_what(exc)}{_where(exc.__traceback__)}"


class FailureLog:
    """Logs what the user's code raises.

    :param every: whether each failure is an ERROR with its traceback
    :param clock: returns the time in seconds
    """

    def __init__(self, logger: logging.Logger, *, every: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._logger = logger
        self._every = every
        self._clock = clock
        #: Of each kind: when it was last logged with its traceback, and how many there were since.
        self._kinds: dict[tuple[type, str], tuple[float, int]] = {}

    def log(self, text: str, exc: BaseException, extra: Mapping[str, object] | None = None) -> None:
        """Log that ``exc`` was raised: ``text``, followed by it in one line. Switches only as handlers of the log do.

        :param extra: further fields of the record
        """
        kind = (type(exc), _where(exc.__traceback__))
        now = self._clock()
        since, count = self._kinds.pop(kind, (now, 0))
        if count == 0 or now - since >= MINUTE or self._every:
            since, count = now, 0
        self._kinds[kind] = (since, count + 1)
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]  # the one that was last seen longest ago
        if count == 0:
            self._logger.error("%s: %s", text, in_one_line(exc), exc_info=exc, extra=extra, stacklevel=2)
        else:
            line = "%s: %s; number %d of these within a minute"
            self._logger.warning(line, text, in_one_line(exc), count + 1, extra=extra, stacklevel=2)


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
