"""Publishing over pipelined acknowledgements, to one nsqd or several.

``producer`` checks and hands over, ``pool`` chooses the nsqd and decides what a failure means, a ``destination`` is
one nsqd, a ``publish`` one command on its way. ``batching`` and ``replicas`` make one of many and many of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.producer.producer import Producer

__all__ = ["Producer"]

__getattr__, __dir__ = lazy_names(__name__, {"Producer": "gnsq_like.producer.producer"})
