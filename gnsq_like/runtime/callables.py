"""Whether a user's function can do its work when it is called: checked when it is given, and on what it returns.

Everything here is blocking-style. Calling an ``async def`` function, or one with ``yield``, runs none of it: it returns
a coroutine or a generator at once, and the work would seem to be done.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from typing import Any

from gnsq_like.errors import InvalidOption

#: For each kind of function that its call does not run: its test, and its name.
_KINDS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (inspect.iscoroutinefunction, "an async def function"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)
_ADVICE = "write it in blocking style, without async, await and yield; it runs in a greenlet or thread of its own"


def check_callable(name: str, function: object, arguments: int | None) -> None:
    """Refuse a function whose call could not do its work.

    :param name: the parameter that it was given for
    :param arguments: the number of positional arguments that it will be called with; None to check all else
    :raises InvalidOption: if it is not callable, is asynchronous or a generator function, or takes other arguments
    """
    if not callable(function):
        raise InvalidOption(name, function, "it must be callable")
    runs = _what_runs(function)
    for is_kind, kind in _KINDS:
        if is_kind(runs):
            raise InvalidOption(name, function, f"it is {kind}, which a call does not run; {_ADVICE}")
    fault = None if arguments is None else _signature_fault(function, arguments)
    if fault is not None:
        count = f"{arguments} positional argument{'' if arguments == 1 else 's'}"
        raise InvalidOption(name, function, f"it cannot be called with {count}: {fault}")


def check_callables(arguments: Mapping[str, int], **functions: object) -> None:
    """As :func:`check_callable`, for each of several functions.

    :param arguments: the number of positional arguments by the parameter's name
    """
    for name, function in functions.items():
        check_callable(name, function, arguments[name])


def _what_runs(function: Any) -> Any:
    """The function below partials, or the method ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def _signature_fault(function: Callable[..., object], arguments: int) -> str | None:
    """Why it cannot be called so, or None; None also for C functions that do not tell their signature."""
    try:
        # Not the wrapped function's: a decorator may pass it other arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except TypeError:
        return None
    except ValueError as exc:
        if not isinstance(function, functools.partial):
            return None
        try:
            inspect.signature(function.func, follow_wrapped=False)
        except (TypeError, ValueError):
            return None
        return str(exc)  # the partial's own arguments do not fit
    try:
        signature.bind(*range(arguments))
    except TypeError as exc:
        return str(exc)
    return None


def undone(result: object) -> str | None:
    """Why the call that returned ``result`` did not do its work, or None. Closes a coroutine or generator."""
    if result is None or not isinstance(result, Coroutine | Generator | AsyncGenerator):
        return None
    if not isinstance(result, AsyncGenerator):
        result.close()  # a coroutine that is merely dropped gives a RuntimeWarning; an async generator does not
    return f"it returned a {type(result).__name__}, {getattr(result, '__name__', '?')}, which nothing runs; {_ADVICE}"
