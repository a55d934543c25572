"""Checks of the user's functions, and logging of their exceptions.

Everything here is blocking-style. Calling an ``async def`` function, or one with ``yield``, runs none of it: it returns
a coroutine or a generator at once, and the work would seem to be done; so it would if a function returned a Task or a
Future. So a function is checked when it is given (:func:`check_callable`), and what it returns is looked at
(:func:`undone`).

ENDS are the exceptions that end a greenlet or the program, and say nothing about the code they pass through. Everything
else that a user's function raises is a fault of it, also where it is no Exception: gevent.Timeout,
asyncio.CancelledError, GeneratorExit, or what pytest.fail raises.

A failing handler may fail for each message, and a traceback for each buries everything else. So the first failure of a
kind within a minute is an ERROR with ``exc_info``, which error trackers take for an event; each further one is a
WARNING of one line, with their number (:class:`FailureLog`). A kind is a type of exception and a place: the innermost
frame outside this package, because an error that is raised in here was caused by the line that called into it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from typing import Any

from gevent import GreenletExit

from gnsq_like.errors import InvalidOption

logger = logging.getLogger(__name__)

ENDS = (GreenletExit, KeyboardInterrupt, SystemExit)


def outcome_of(function: Callable[..., Any], *arguments: object, **named: object) -> tuple[Any, BaseException | None]:
    """What a function that runs code of the user returns, and what it raises instead; ENDS pass."""
    try:
        return function(*arguments, **named), None
    except ENDS:
        raise
    except BaseException as exc:
        return None, exc


#: For each kind of function that its call does not run: its test, and its name.
_KINDS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (inspect.iscoroutinefunction, "an async def function"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)
_ADVICE = "write it in blocking style, without async, await and yield; it runs in a greenlet or thread of its own"


def check_callable(name: str, function: object, arguments: int | None) -> None:
    """Refuse a function that cannot work as a handler or hook.

    :param name: the parameter that it was given for
    :param arguments: the number of positional arguments that it will be called with; None to check all else
    :raises InvalidOption: if it is not callable, is asynchronous or a generator function, or takes other arguments
    """
    if not callable(function):
        raise InvalidOption(name, function, "it must be callable")
    inner: Any = function
    given: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    while isinstance(inner, functools.partial):
        inner, given, named = inner.func, inner.args + given, inner.keywords | named
    runs = inner if inspect.isroutine(inner) or isinstance(inner, type) else type(inner).__call__
    for is_kind, kind in _KINDS:
        if is_kind(runs):
            raise InvalidOption(name, function, f"it is {kind}, which a call does not run; {_ADVICE}")
    if arguments is None:
        return
    try:
        # Not the wrapped function's: a decorator may pass it other arguments.
        signature = inspect.signature(inner, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a C function that does not tell it
    try:
        signature.bind(*given, *range(arguments), **named)
    except TypeError as exc:
        count = f"{arguments} positional argument{'' if arguments == 1 else 's'}"
        raise InvalidOption(name, function, f"it cannot be called with {count}: {exc}") from exc


def undone(result: object) -> str | None:
    """Why the call that returned ``result`` did not do its work, or None. Closes a coroutine or generator."""
    if result is None or not isinstance(result, Awaitable | Generator | AsyncGenerator):
        return None
    if isinstance(result, Coroutine | Generator):
        result.close()  # a coroutine that is merely dropped gives a RuntimeWarning; an async generator does not
    name = getattr(result, "__name__", "")
    return f"it returned a {type(result).__name__}{name and f', {name}'}, which nothing awaits or runs; {_ADVICE}"


_PACKAGE = __name__.partition(".")[0]
#: Characters of an exception's text; the traceback has all of it.
_LONGEST = 500

#: Seconds in which further failures of a kind have no traceback.
MINUTE = 60.0
#: Kinds that are remembered; a place has few, but a text that is compiled anew each time has a new one each time.
_MOST_KINDS = 1000


def in_one_line(exc: BaseException) -> str:
    """Type, text and place of an exception: ``ValueError: no user (/srv/clicks/handler.py:12, in store)``."""
    place = place_of(exc)
    return f"{summary(exc)} ({place})" if place else summary(exc)


def type_of(exc: BaseException) -> str:
    """The name of its type, with its module unless it is one of Python's own."""
    cls = type(exc)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def text_of(exc: BaseException) -> str:
    """Its text in one line of at most ``_LONGEST`` characters; "" if it has none."""
    try:
        text = " ".join(str(exc).split())
    except Exception:
        text = "<its text cannot be made>"
    return f"{text[:_LONGEST]}..." if len(text) > _LONGEST else text


def place_of(exc: BaseException) -> str:
    """The innermost line outside this package that it came through: ``/srv/clicks/handler.py:12, in store``, or ""."""
    place = ""
    traceback = exc.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__")).partition(".")[0] != _PACKAGE:
            code = frame.f_code
            place = f"{code.co_filename}:{traceback.tb_lineno}, in {code.co_qualname}"
        traceback = traceback.tb_next
    return place


class FailureLog:
    """Logs what the user's code raises. From any thread.

    :param every: whether each failure is an ERROR with its traceback
    """

    def __init__(self, logger: logging.Logger, *, every: bool = False) -> None:
        self._logger = logger
        self._every = every
        #: Of each kind: when it was last logged with its traceback, and how many there were since.
        self._kinds: dict[tuple[type, str], tuple[float, int]] = {}

    def log(self, text: str, exc: BaseException, extra: Mapping[str, object] | None = None) -> None:
        """Log that ``exc`` was raised: ``text``, followed by it in one line. Switches only as handlers of the log do.

        :param extra: further fields of the record
        """
        kind = (type(exc), place_of(exc))
        now = time.monotonic()
        since, count = self._kinds.pop(kind, (now, 0))
        if count == 0 or now - since >= MINUTE or self._every:
            since, count = now, 0
        self._kinds[kind] = (since, count + 1)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.pop(next(iter([*self._kinds])), None)  # the one that was last seen longest ago
        try:
            if count == 0:
                self._logger.error("%s: %s", text, in_one_line(exc), exc_info=exc, extra=extra, stacklevel=2)
            else:
                line = "%s: %s; number %d of these within a minute"
                self._logger.warning(line, text, in_one_line(exc), count + 1, extra=extra, stacklevel=2)
        except Exception as failure:  # of a filter
            print_exception(failure)


def print_exception(exc: BaseException) -> None:
    """Print what was raised while something was logged, as ``logging`` does for its handlers."""
    if logging.raiseExceptions and sys.stderr is not None:
        with suppress(OSError, ValueError):
            traceback.print_exception(exc)


def summary(exc: BaseException) -> str:
    """Type and text of an exception: ``ValueError: no user``."""
    text = text_of(exc)
    return f"{type_of(exc)}: {text}" if text else type_of(exc)
