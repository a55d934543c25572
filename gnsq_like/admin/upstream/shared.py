"""One request for all callers that ask the same at about the same time; in one hub.

A caller that comes while the request is under way waits for its answer, and an answer is reused until it is too old. An
action discards all answers, so that its effect is seen at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from gevent.event import AsyncResult

_T = TypeVar("_T")

#: Answers to keep; a scan of many topics must not fill the memory.
_MOST_KEPT = 256


class Shared:
    """Answers by key. Belongs to one hub."""

    def __init__(self) -> None:
        #: When each was asked for (monotonic), and its answer; the oldest first.
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def forget(self) -> None:
        """Discard all answers, also those under way. Never switches."""
        self._kept.clear()

    def get(self, key: Hashable, ask: Callable[[], _T], max_age: float) -> _T:
        """The answer to ``ask()``, not older than ``max_age`` seconds; or what it raised. May switch."""
        now = time.monotonic()
        asked_at, answer = self._kept.get(key, (0.0, None))
        if answer is None or (answer.ready() and now - asked_at > max_age):
            answer = AsyncResult()
            self._kept.pop(key, None)
            self._kept[key] = (now, answer)
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            try:
                answer.set(ask())
            except Exception as exc:
                answer.set_exception(exc)
            except BaseException:  # the asking greenlet was killed
                answer.set_exception(TimeoutError("the question was given up"))
                raise
        result: _T = answer.get()
        return result
