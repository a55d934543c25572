"""The same daemon twice, ours and NSQ's, for tests that compare what they answer to random input.

GNSQ_LIKE_SEED chooses the input (an integer, 1 by default), so that a difference can be seen again;
GNSQ_LIKE_HTTP_REQUESTS and GNSQ_LIKE_TCP_SEQUENCES say how much of it there is. ``make test-differential`` sets both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

from tests.support.daemons import Running, running_nsqd, running_nsqlookupd

SEED = int(os.environ.get("GNSQ_LIKE_SEED", "1"))
#: Differences that are listed before a test gives up.
_MOST_LISTED = 10


class Both(NamedTuple):
    ours: Running
    real: Running


@contextmanager
def both(name: str, **options: Any) -> Iterator[Both]:
    """Ours and NSQ's ``name``, "nsqd" or "nsqlookupd", as processes."""
    running = {"nsqd": running_nsqd, "nsqlookupd": running_nsqlookupd}[name]
    with running("process", **options) as ours, running("real", **options) as real:
        yield Both(ours, real)


def how_many(variable: str, default: int) -> int:
    return int(os.environ.get(variable, default))


def compare(daemons: Both, count: int, name: str, ask: Callable[[Random, Both], tuple[str, object, object]]) -> None:
    """Call ``ask`` until ``count`` pairs of answers were compared, and fail with the first that differ.

    :param ask: sends to both what a Random chooses; returns what was sent, and the two answers
    """
    differences = []
    for index in range(count):
        sent, ours, real = ask(Random(f"{SEED} {name} {index}"), daemons)
        if ours != real:
            differences.append(f"{index}: {sent}\n  ours: {ours}\n  NSQ:  {real}")
            if len(differences) == _MOST_LISTED:
                break
    assert not differences, f"GNSQ_LIKE_SEED={SEED}\n" + "\n".join(differences)
