"""Functions that cannot do their work are refused, all others are not."""

from __future__ import annotations

import functools
import gc
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.callables import check_callable, undone


async def asynchronous(message: object) -> None: ...


def generator(message: object) -> Iterator[object]:
    yield message


async def asynchronous_generator(message: object) -> AsyncIterator[object]:
    yield message


def two(first: object, second: object) -> None: ...


def one_and_keywords(message: object, *, timeout: float = 1.0) -> None: ...


class Methods:
    async def asynchronous(self, message: object) -> None: ...

    def generator(self, message: object) -> Iterator[object]:
        yield message

    def plain(self, message: object) -> None: ...

    @staticmethod
    def static(message: object) -> None: ...

    @classmethod
    async def asynchronous_of_class(cls, message: object) -> None: ...


class CallableAsync:
    async def __call__(self, message: object) -> None: ...


class CallableGenerator:
    def __call__(self, message: object) -> Iterator[object]:
        yield message


class CallablePlain:
    def __call__(self, message: object) -> None: ...


class Work:
    """A class as a handler: each message makes an object."""

    def __init__(self, message: object) -> None: ...


def with_database(function: Callable[[object, object], None]) -> Callable[[object], None]:
    @functools.wraps(function)
    def wrapper(message: object) -> None:
        function(message, "database")

    return wrapper


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("text", "it must be callable"),
        (asynchronous, "an async def function"),
        (generator, "a generator function"),
        (asynchronous_generator, "an async generator function"),
        (lambda message: (yield), "a generator function"),
        (Methods().asynchronous, "an async def function"),
        (Methods.asynchronous_of_class, "an async def function"),
        (Methods().generator, "a generator function"),
        (CallableAsync(), "an async def function"),
        (CallableGenerator(), "a generator function"),
        (functools.partial(asynchronous), "an async def function"),
        (functools.partial(functools.partial(CallableAsync())), "an async def function"),
        (functools.partial(Methods().generator), "a generator function"),
        (two, "1 positional argument: missing a required argument: 'second'"),
        (lambda: None, "1 positional argument: too many positional arguments"),
        (lambda *, message: None, "1 positional argument"),
        (Methods.plain, "1 positional argument"),
        (functools.partial(two, 1, 2), "1 positional argument"),
        (functools.partial(two, *[1, 2, 3]), "1 positional argument"),
        (object, "1 positional argument"),
    ],
)
def test_a_function_that_could_not_work_is_refused(function: object, reason: str) -> None:
    with pytest.raises(InvalidOption, match=r"invalid option handler=") as caught:
        check_callable("handler", function, 1)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        print,
        [].append,
        deque().append,
        dict,
        int,
        one_and_keywords,
        with_database(two),
        functools.partial(two, 1),
        functools.partial(two, second=1),
        Methods().plain,
        Methods.static,
        CallablePlain(),
        Work,
        Mock(),
        lambda *arguments: None,
        lambda message, retries=3: None,
    ],
)
def test_every_other_function_is_accepted(function: Callable[[Any], object]) -> None:
    check_callable("handler", function, 1)


def test_the_number_of_arguments_is_what_the_call_has() -> None:
    check_callable("on_error", two, 2)
    with pytest.raises(InvalidOption, match=r"on_error.* 2 positional arguments: too many"):
        check_callable("on_error", Methods().plain, 2)
    check_callable("on_error", Methods().plain, None)


@pytest.mark.parametrize("function", [asynchronous, generator, asynchronous_generator])
def test_what_nothing_has_run_is_noticed_and_closed(function: Callable[[object], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fault = undone(function(1))
        gc.collect()  # a coroutine that was not closed would warn here
    assert fault is not None
    assert function.__name__ in fault


@pytest.mark.parametrize("result", [None, True, 0, "text", [1], iter([1]), Mock(), open])
def test_any_other_result_is_one(result: object) -> None:
    assert undone(result) is None
