"""Publishing with pipelined acknowledgements, to one nsqd or several.

``producer`` is what callers use and wait in, ``encoder`` checks and encodes, ``pool`` has the pending publishes and
their deadlines, chooses the nsqd and decides about retries, ``destinations`` finds nsqds and connects, a ``publish`` is
one command or its copies, the outcome, and how callers wait for it. ``batching`` combines publishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.producer.producer import Producer

__all__ = ["Producer"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(__name__, {"Producer": "gnsq_like.producer.producer"})
