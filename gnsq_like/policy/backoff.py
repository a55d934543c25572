"""Backoff: one state machine for the whole Reader.

    FLOWING --failure--> BLOCKED --time is up--> PROBING --failure--> BLOCKED, level + 1
                            ^                       |
                            +--- success, level-1 --+--- success at level 1 ---> FLOWING

Theory. A failing handler usually means that something behind it is down, so everything stops: RDY 0 on all
connections for `strategy(level)` seconds. Then RDY 1 on one connection tests the water, and only the result
of that one message counts. Its *epoch* tells it apart: every message is stamped when it arrives (`stamp`) and
its result is reported with the stamp. A result counts only if its stamp is the current epoch, and each counted
result ends that epoch. So messages from before, however late they are answered, steer nothing.

The machine does not know connections. Which one holds the test RDY is the plan's business
(`rdy.plan` with mode PROBING): it moves a test that gets no message, and finds another connection when one
is lost, or when the first one comes back. Where all connections have handlers that still run, the test waits
until those of one are done or overdue, for RDY 1 brings nothing before. The machine only hears when the test
message itself is out of reach: `inconclusive` (requeued without backoff, given up, its deadline passed) or
`lost`.

Rules for editors. `_TABLE` holds every change of state, `_enter` is the only place that assigns one.
What the Reader must do follows from `mode` and `until`; every method returns whether they changed, and then
the Reader plans at once, before the answer (FIN or REQ) that caused the change goes out: otherwise nsqd
sends another message under the old RDY.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable

from gnsq_like.policy.rdy import Mode

__all__ = ["STALE", "Backoff", "Strategy", "exponential", "full_jitter", "sound"]

#: Level (1, 2, ...) to seconds of blocking. What is above `max_backoff_duration` is cut.
Strategy = Callable[[int], float]

#: The stamp of messages whose result counts for nothing.
STALE = 0

#: Beyond this no strategy is asked to go, however small the multiplier.
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
    """Anything between 0 and what `exponential` says, at most `maximum`; `draw` returns a float in [0, 1)."""
    return lambda level: draw() * min(maximum, multiplier * 2.0**level)


def sound(strategy: Strategy, instead: Strategy, told: Callable[[str], object]) -> Strategy:
    """A user's strategy that cannot harm: when it raises, or gives no number of seconds, `instead` is asked.

    `told` is called with what was wrong.
    """

    def ask(level: int) -> float:
        try:
            seconds = float(strategy(level))
        except Exception as exc:
            told(f"raised {exc!r} at level {level}")
            return instead(level)
        if not 0 <= seconds < float("inf"):
            told(f"gave {seconds!r} at level {level}")
            return instead(level)
        return seconds

    return ask


class Backoff:
    """The Reader's backoff.

    :param strategy: level to seconds; see `exponential` and `full_jitter`
    :param max_duration: the longest block in seconds; 0 switches backoff off
    :param multiplier: where the level stops rising: at the first whose ``multiplier * 2**level`` reaches
        `max_duration`, whatever the strategy
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
        #: failures to work off, 0 while flowing
        self.level = 0
        #: end of the block (monotonic), or None: then call `time_is_up`
        self.until: float | None = None
        #: stamp of the messages whose results count now
        self.epoch = STALE + 1
        #: the connection whose test message is with a handler
        self._test_key: Hashable | None = None

    def stamp(self, key: Hashable, granted: bool) -> int:
        """The stamp of a message that just came from connection `key`.

        `granted` says whether the plan lets that connection have messages (its charge's rdy is above 0). While
        flowing the stamp of all messages is `epoch`; this needs calling only in the other modes.
        """
        if self.mode is Mode.FLOWING:
            return self.epoch
        if self.mode is Mode.PROBING and granted and self._test_key is None:
            self._test_key = key
            return self.epoch
        return STALE

    def failure(self, stamp: int, now: float) -> bool:
        """A message was requeued with backoff. True if the mode or the block changed."""
        return stamp == self.epoch and self._enter(_Event.FAILURE, now)

    def success(self, stamp: int, now: float) -> bool:
        """A message was finished. True if the mode or the block changed."""
        return stamp == self.epoch and self._enter(_Event.SUCCESS, now)

    def inconclusive(self, stamp: int, now: float) -> bool:
        """A message left without a verdict: requeued without backoff, given up, or past its deadline.

        If it was the test message, the next one on that connection is.
        """
        return stamp == self.epoch and self._test_key is not None and self._enter(_Event.TEST_GONE, now)

    def lost(self, key: Hashable, now: float) -> bool:
        """A connection was lost; if the test message came from it, the next one decides."""
        return self._test_key is not None and key == self._test_key and self._enter(_Event.TEST_GONE, now)

    def time_is_up(self, now: float) -> bool:
        """The timer for `until` fired. Too early it does nothing."""
        return self.until is not None and now >= self.until and self._enter(_Event.TIME_IS_UP, now)

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
