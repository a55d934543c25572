"""How the supervisor deals out ``max_in_flight`` over its processes, and how long it waits before restarts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: Seconds that a process must have lived for its death to be the first one again.
STABLE = 30.0
#: Seconds before the second restart in a row; doubled for each further one.
_FIRST_DELAY = 1.0
_MAX_DELAY = 30.0


def share(total: int, processes: int, position: int) -> int:
    """The part of ``total`` for the process at this position, which is taken modulo ``processes``.

    At least 1, because a process with 0 would receive nothing; so fewer than ``processes`` becomes more. 0 stays 0.
    """
    if total == 0:
        return 0
    least, more = divmod(total, processes)
    return max(1, least + (position % processes < more))


def shares(totals: Sequence[int], processes: int, slot: int) -> list[int]:
    """The parts of several Readers' totals for one process.

    The remainders of different Readers go to different processes: they would otherwise all go to the first one.
    """
    return [share(total, processes, slot + index) for index, total in enumerate(totals)]


def restart_delay(failures: int) -> float:
    """Seconds until the restart after so many deaths in a row, 1 or more: none, 1, 2, 4, ... 30."""
    if failures <= 1:
        return 0.0
    return min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 2, 10))
