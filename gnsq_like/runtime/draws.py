"""Random draws for delays and for the order of turns.

Not those of the ``random`` module: an application that seeds it in each of its processes would make them all redial at
the same moments, and its own sequence would not be reproducible with greenlets of ours drawing from it. Nor its
SystemRandom, whose import takes a millisecond or two of each first publish.
"""

from __future__ import annotations

import os


def draw() -> float:
    """A number from 0 to 1, 1 excluded. From any thread; a forked child draws others than its parent."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
