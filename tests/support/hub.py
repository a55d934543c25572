"""The hub's turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gevent


def settle() -> None:
    """Let the hub do all that is due."""
    for _ in range(3):
        gevent.idle()


@contextmanager
def counting_rounds() -> Iterator[list[int]]:
    """The only element of the list is the number of this hub's rounds in the block."""
    rounds = [0]

    def count() -> None:
        rounds[0] += 1

    with gevent.get_hub().loop.prepare() as watcher:
        watcher.start(count)
        yield rounds
