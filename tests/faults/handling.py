"""Handlers of every kind: quick, slow, failing, hanging, and raising what handlers should not raise."""

from __future__ import annotations

import random
from collections.abc import Callable

import gevent
from gevent import monkey

from gnsq_like import Message, Requeue
from tests.faults.bodies import number_of
from tests.faults.notes import Notes

_native_sleep = monkey.get_original("time", "sleep")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")


class Odd(BaseException):
    """No Exception, and none of gevent's either."""


class Handler:
    """Handles a message as its number and attempts say, and notes it when it is done.

    :param hang: seconds of the longest
    :param is_native: whether handlers run in native threads
    """

    #: How many of 1000 deliveries are handled so; the others at once.
    SHARES = (
        ("slow", 80),
        ("fail", 20),
        ("requeue", 20),
        ("hang", 8),
        ("touch", 8),
        ("async", 20),
        ("exit", 5),
        ("timeout", 5),
        ("odd", 3),
        ("interrupt", 2),
        ("false", 5),
        ("burn", 5),
        ("block", 1),
    )

    def __init__(self, seed: str, notes: Notes, hang: float, *, is_native: bool) -> None:
        self._seed = seed
        self._notes = notes
        self._longest = hang
        self._is_native = is_native
        self._sleep: Callable[[float], object] = _native_sleep if is_native else gevent.sleep

    def __call__(self, message: Message) -> bool | None:
        return self.handle_many([message])

    def handle_many(self, messages: list[Message]) -> bool | None:
        """For a Batch: as the first one says."""
        if self._act(messages[0]) is False:
            return False
        for message in messages:
            if not message.is_async:
                self._done(message)
        return None

    def _act(self, message: Message) -> bool | None:
        number = number_of(message.body)
        draw = random.Random(f"{self._seed} {number} {message.attempts}")
        point = draw.uniform(0, 1000)
        for kind, share in self.SHARES:
            point -= share
            if point < 0:
                result: bool | None = getattr(self, f"_{kind}")(message, draw)
                return result
        return None

    def _done(self, message: Message) -> None:
        if self._notes.is_mine:
            self._notes.handled(number_of(message.body), message, in_thread=self._is_native)

    def _slow(self, message: Message, draw: random.Random) -> None:
        self._sleep(draw.uniform(0, 0.2))

    def _hang(self, message: Message, draw: random.Random) -> None:
        self._sleep(self._longest * draw.uniform(0.5, 1))

    def _touch(self, message: Message, draw: random.Random) -> None:
        for _ in range(4):
            self._sleep(self._longest / 6)
            message.touch()

    def _fail(self, message: Message, draw: random.Random) -> None:
        raise ValueError("a handler that fails")

    def _requeue(self, message: Message, draw: random.Random) -> None:
        raise Requeue(draw.uniform(0, 0.5), backoff=draw.random() < 0.3)

    def _exit(self, message: Message, draw: random.Random) -> None:
        raise gevent.GreenletExit

    def _timeout(self, message: Message, draw: random.Random) -> None:
        raise gevent.Timeout(None)  # with seconds it would make a hub in a native thread

    def _odd(self, message: Message, draw: random.Random) -> None:
        raise Odd

    def _interrupt(self, message: Message, draw: random.Random) -> None:
        raise KeyboardInterrupt

    def _false(self, message: Message, draw: random.Random) -> bool:
        return False

    def _block(self, message: Message, draw: random.Random) -> None:
        _native_sleep(draw.uniform(0, 1.5))

    def _burn(self, message: Message, draw: random.Random) -> None:
        sum(range(draw.randrange(1_000_000)))

    def _async(self, message: Message, draw: random.Random) -> None:
        message.enable_async()

        def later(seconds: float) -> None:
            self._sleep(seconds)
            self._done(message)
            message.finish()

        seconds = draw.uniform(0, 0.3)
        if self._is_native:
            _start_new_thread(later, (seconds,))
        else:
            gevent.spawn(later, seconds)
