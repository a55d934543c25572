"""A line every ten seconds while a target of make runs: ``make tests: 812 of 5120, 70 s``.

Several targets run at once, each in its own processes. One that says nothing for minutes looks as if it hung.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

#: Set by the Makefile: the target that runs.
TARGET = os.environ.get("GNSQ_LIKE_TARGET", "")
_EVERY = 10.0


class Progress:
    """Counts what is done, and prints a line when that is due.

    :param say: prints a line
    :param target: its name; "" to print nothing
    :param clock: returns the time in seconds
    """

    def __init__(
        self, say: Callable[[str], object], *, target: str = TARGET, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._target = target
        self._clock = clock
        self._began = self._said = clock()
        self._done = 0

    def done(self, total: int) -> None:
        """One more is done, of so many."""
        self._done += 1
        now = self._clock()
        if self._target and now - self._said >= _EVERY:
            self._said = now
            self._say(f"make {self._target}: {self._done} of {total}, {now - self._began:.0f} s")
