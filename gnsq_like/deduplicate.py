"""Drops duplicates when consuming.

nsqd delivers at least once, a publish with unknown outcome may have been repeated, and ``replicas=`` makes copies on
purpose. nsqd's ids of such messages differ, so duplicates are recognized by a key that is made of the body.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from gnsq_like.errors import InvalidOption, NSQError, Requeue, check_seconds
from gnsq_like.reader.message import Message
from gnsq_like.runtime.native import monotonic
from gnsq_like.runtime.user_code import check_callable, undone

logger = logging.getLogger(__name__)

__all__ = ["Deduplicate", "MemoryStore", "Store"]


class Store(Protocol):
    """Remembers keys: :class:`MemoryStore`, or a store of your own for several processes, for instance on Redis.

    Its methods may switch. If handlers run in threads, they are called in these.
    """

    def seen(self, key: Hashable) -> bool:
        """Whether the key was remembered and its window is not over."""

    def remember(self, key: Hashable, window: float) -> None:
        """Remember the key for ``window`` seconds."""


class MemoryStore:
    """Remembers keys in this process's memory.

    :param limit: maximum number of keys; beyond, the oldest are forgotten
    :param clock: returns monotonic seconds
    """

    def __init__(self, limit: int = 100_000, *, clock: Callable[[], float] = monotonic) -> None:
        if limit < 1:
            raise InvalidOption("limit", limit, "it must be at least 1")
        self._limit = limit
        self._clock = clock
        #: Each key with the time at which it is forgotten, the oldest first.
        self._keys: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def seen(self, key: Hashable) -> bool:
        """Whether the key was remembered and its window is not over."""
        until = self._keys.get(key)
        return until is not None and until > self._clock()

    def remember(self, key: Hashable, window: float) -> None:
        """Remember the key for ``window`` seconds."""
        now = self._clock()
        self._keys[key] = now + window
        self._keys.move_to_end(key)
        # Other threads may remove keys meanwhile, so each step allows for that.
        while self._keys:
            oldest = next(iter(self._keys), None)
            if len(self._keys) <= self._limit and self._keys.get(oldest, 0.0) > now:
                return
            self._keys.pop(oldest, None)


class _Busy(Requeue):
    """Its original is being handled: this delivery was no attempt."""

    counts = False


class Deduplicate:
    """A handler that drops duplicates: ``Reader(topic, channel, Deduplicate(handler, ...))``.

    A message counts as handled once ``handler`` has returned without requeueing it; its copies are then finished
    without being handled. If the handler raises or returns False, nothing is remembered. A copy that arrives while the
    handler runs is requeued without backoff, to be handled if the handler fails; such deliveries do not count for
    ``max_attempts``. A message that is answered later
    (``enable_async``) is not remembered.

    :param handler: called with each :class:`Message`
    :param key: a function of the Message; returns a hashable that is equal for copies, such as an id in the body
    :param window: seconds for which a key is remembered
    :param store: the :class:`Store`; None for a :class:`MemoryStore` of its own
    :param busy_delay: requeue delay, in seconds, of a copy that arrives while the handler runs; None for the Reader's
    :raises InvalidOption: if an argument is invalid
    """

    def __init__(
        self,
        handler: Callable[[Message], bool | None],
        *,
        key: Callable[[Message], Hashable],
        window: float,
        store: Store | None = None,
        busy_delay: float | None = None,
    ) -> None:
        check_callable("handler", handler, 1)
        check_callable("key", key, 1)
        check_seconds("window", window, above=0)
        check_seconds("busy_delay", busy_delay, or_none=True, minimum=0)
        for name in ("seen", "remember"):
            if store is not None and not callable(getattr(store, name, None)):
                raise InvalidOption("store", store, f"it has no method {name}; see gnsq_like.deduplicate.Store")
        self._handler = handler
        self._key = key
        self._window = window
        self.store: Store = MemoryStore() if store is None else store
        self._busy_delay = busy_delay
        #: The messages being handled, by key.
        self._busy: dict[Hashable, Message] = {}
        #: Number of copies finished without being handled.
        self.dropped_count: int = 0

    def __call__(self, message: Message) -> bool | None:
        """Handle or drop a message. May switch."""
        key = self._key(message)
        # setdefault is atomic, so only one of two threads gets the key.
        if self._busy.setdefault(key, message) is not message:
            raise _Busy(delay=self._busy_delay, backoff=False)
        try:
            if self.store.seen(key):
                self.dropped_count += 1
                return None
            result = self._handler(message)
            if (fault := undone(result)) is not None:
                raise NSQError(f"{self._handler!r} handled nothing: {fault}")
            if result is not False and message.answer != "REQ" and not message.is_async:
                self._remember(key)
            return result
        finally:
            del self._busy[key]

    def _remember(self, key: Hashable) -> None:
        try:
            self.store.remember(key, self._window)
        except Exception:
            # The message has been handled; requeueing it would certainly handle it twice.
            logger.exception("%r was handled but not remembered; a copy of it would be handled again", key)
