"""Backoff: one state machine for the whole Reader.

    FLOWING --failure--> BLOCKED --time is up--> PROBING --failure--> BLOCKED, level + 1
                            ^                       |
                            +--- success, level-1 --+--- success at level 1 ---> FLOWING

Theory. A failing handler usually means that a service it depends on is down, so everything stops: RDY 0 on all
connections for `strategy(level)` seconds. Then RDY 1 on one connection fetches a test message, and only its result
counts. Its *epoch* identifies it: every message is stamped on arrival (`stamp`) and its result is reported with the
stamp. A result counts only if its stamp is the current epoch, and each counted result ends that epoch. So older
messages have no effect, however late they are answered.

The machine does not know connections. Which one gets the test RDY is up to the plan (`rdy.plan` with mode PROBING):
it moves a test that gets no message, and picks another connection when one is lost or when the first connection
returns. While handlers still run on all connections, the test waits until those of one are done or overdue, because
RDY 1 delivers nothing before. The machine is only informed when the test message itself has no result:
`inconclusive` (requeued without backoff, given up, its deadline passed) or `lost`.

Rules for editors. `_TABLE` holds every change of state, `_enter` is the only place that assigns one. The Reader's
actions follow from `mode` and `until`; every method returns whether they changed. If so, the Reader plans immediately,
before it sends the answer (FIN or REQ) that caused the change: otherwise nsqd sends another message under the old RDY.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable


class Mode(enum.Enum):
    """The RDY that backoff allows."""

    FLOWING = "flowing"  #: all of it
    BLOCKED = "blocked"  #: RDY 0 everywhere
    PROBING = "probing"  #: RDY 1 on one connection, for a test message


#: Level (1, 2, ...) to seconds of blocking; capped at `max_backoff_duration`.
Strategy = Callable[[int], float]

#: The stamp of messages whose result does not count.
STALE = 0

#: No level exceeds this, however small the multiplier.
_HIGHEST_LEVEL = 60


class _Event(enum.Enum):
    FAILURE = "failure"
    SUCCESS = "success"
    TIME_IS_UP = "time is up"
    TEST_GONE = "test gone"


#: (mode, event) -> (next mode, change of level). Anything not listed changes nothing.
#: BLOCKED at level 0 means FLOWING, see `_enter`.
_TABLE: dict[tuple[Mode, _Event], tuple[Mode, int]] = {
    (Mode.FLOWING, _Event.FAILURE): (Mode.BLOCKED, +1),
    (Mode.BLOCKED, _Event.TIME_IS_UP): (Mode.PROBING, 0),
    (Mode.PROBING, _Event.FAILURE): (Mode.BLOCKED, +1),
    (Mode.PROBING, _Event.SUCCESS): (Mode.BLOCKED, -1),
    (Mode.PROBING, _Event.TEST_GONE): (Mode.PROBING, 0),
}


def exponential(multiplier: float = 1.0) -> Strategy:
    """``multiplier * 2**level`` seconds."""
    return lambda level: multiplier * 2.0**level


def full_jitter(draw: Callable[[], float], multiplier: float = 1.0, maximum: float = 120.0) -> Strategy:
    """A random time from 0 to that of `exponential`, at most `maximum`; `draw` returns a float in [0, 1)."""
    return lambda level: draw() * min(maximum, multiplier * 2.0**level)


def guarded(strategy: Strategy, fallback: Strategy, report: Callable[[str], object]) -> Strategy:
    """A user's strategy with a `fallback` for when it raises or returns no number of seconds.

    `report` is called with a description of the fault.
    """

    def ask(level: int) -> float:
        try:
            seconds = float(strategy(level))
        except Exception as exc:
            report(f"raised {exc!r} at level {level}")
            return fallback(level)
        if not 0 <= seconds < float("inf"):
            report(f"returned {seconds!r} at level {level}")
            return fallback(level)
        return seconds

    return ask


class Backoff:
    """The Reader's backoff.

    :param strategy: level to seconds; see `exponential` and `full_jitter`
    :param max_duration: the longest block in seconds; 0 disables backoff
    :param multiplier: bounds the level, for any strategy: it stops rising where ``multiplier * 2**level`` reaches
        `max_duration`
    """

    __slots__ = ("_strategy", "_test_key", "epoch", "highest_level", "level", "max_duration", "mode", "until")

    def __init__(self, strategy: Strategy, max_duration: float = 120.0, multiplier: float = 1.0) -> None:
        self._strategy = strategy
        self.max_duration = max_duration
        self.highest_level = 1
        while self.highest_level < _HIGHEST_LEVEL and multiplier * 2.0**self.highest_level < max_duration:
            self.highest_level += 1
        #: the mode for `rdy.plan`
        self.mode = Mode.FLOWING
        #: 0 while flowing; each failure raises it, each success lowers it
        self.level = 0
        #: end of the block (monotonic), or None: then call `time_is_up`
        self.until: float | None = None
        #: stamp of the messages whose results count now
        self.epoch = STALE + 1
        #: the connection whose test message is being handled
        self._test_key: Hashable | None = None

    def stamp(self, key: Hashable, granted: bool) -> int:
        """The stamp of a message that just arrived from connection `key`.

        `granted` says whether the plan lets that connection have messages (its charge's rdy is above 0). While
        flowing, all messages get `epoch`, and this need not be called.
        """
        if self.mode is Mode.FLOWING:
            return self.epoch
        if self.mode is Mode.PROBING and granted and self._test_key is None:
            self._test_key = key
            return self.epoch
        return STALE

    def failure(self, stamp: int, now: float) -> bool:
        """A message was requeued with backoff. True if `mode` or `until` changed."""
        return stamp == self.epoch and self._enter(_Event.FAILURE, now)

    def success(self, stamp: int, now: float) -> bool:
        """A message was finished. True if `mode` or `until` changed."""
        return stamp == self.epoch and self._enter(_Event.SUCCESS, now)

    def inconclusive(self, stamp: int, now: float) -> bool:
        """A message ended without a result: requeued without backoff, given up, or past its deadline.

        If it was the test message, the next message on that connection takes its place.
        """
        return stamp == self.epoch and self._test_key is not None and self._enter(_Event.TEST_GONE, now)

    def lost(self, key: Hashable, now: float) -> bool:
        """A connection was lost. If the test message came from it, the next message takes its place."""
        return self._test_key is not None and key == self._test_key and self._enter(_Event.TEST_GONE, now)

    def time_is_up(self, now: float) -> bool:
        """The timer for `until` fired; no effect if that is too early."""
        return self.until is not None and now >= self.until and self._enter(_Event.TIME_IS_UP, now)

    def hasten(self, seconds: float) -> None:
        """The block ends so much sooner: a test moves the time on."""
        if self.until is not None:
            self.until -= seconds

    def _enter(self, event: _Event, now: float) -> bool:
        step = _TABLE.get((self.mode, event))
        if step is None or not self.max_duration:
            return False
        mode, change = step
        level = min(self.level + change, self.highest_level)
        if mode is Mode.BLOCKED and level == 0:
            mode = Mode.FLOWING
        self.until = now + self._duration(level) if mode is Mode.BLOCKED else None
        self.mode, self.level = mode, level
        self.epoch += 1
        self._test_key = None
        return True

    def _duration(self, level: int) -> float:
        return max(0.0, min(self.max_duration, self._strategy(level)))
