"""Dropping copies of messages on the consuming side.

nsqd delivers at least once, a publish of unknown outcome may have been sent twice, and ``replicas=``
makes copies on purpose. Their nsqd ids differ, so what makes two messages the same is said by a key
from their bodies.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from gnsq_like.errors import InvalidOption, Requeue
from gnsq_like.reader.message import Message

logger = logging.getLogger(__name__)

__all__ = ["Deduplicate", "MemoryStore", "Store"]


class Store(Protocol):
    """Where keys are remembered: :class:`MemoryStore`, or one's own for several processes (a Redis, say).

    Its methods may switch greenlets. With handlers in threads they are called from those.
    """

    def seen(self, key: Hashable) -> bool:
        """Whether the key was remembered, and its window is not over."""

    def remember(self, key: Hashable, window: float) -> None:
        """Remember the key for ``window`` seconds."""


class MemoryStore:
    """Remembers in this process, the newest ``limit`` keys at most.

    :param limit: keys; the oldest are forgotten beyond
    :param clock: gives monotonic seconds
    """

    def __init__(self, limit: int = 100_000, *, clock: Callable[[], float] = time.monotonic) -> None:
        if limit < 1:
            raise InvalidOption("limit", limit, "the least is 1")
        self._limit = limit
        self._clock = clock
        #: When each is forgotten, the oldest first.
        self._keys: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def seen(self, key: Hashable) -> bool:
        """Whether the key was remembered, and its window is not over."""
        until = self._keys.get(key)
        return until is not None and until > self._clock()

    def remember(self, key: Hashable, window: float) -> None:
        """Remember the key for ``window`` seconds."""
        now = self._clock()
        self._keys[key] = now + window
        self._keys.move_to_end(key)
        # Whatever another thread takes out meanwhile, one step at a time stays right.
        while self._keys:
            oldest = next(iter(self._keys), None)
            if len(self._keys) <= self._limit and self._keys.get(oldest, 0.0) > now:
                return
            self._keys.pop(oldest, None)


class Deduplicate:
    """A handler that passes on each message once, for a Reader: ``Reader(topic, channel, Deduplicate(handler, ...))``.

    A message counts as handled only when ``handler`` has returned (and has not requeued it): then its copies
    are finished without being handled. One whose handler raised, or returned False, leaves no trace. A copy
    that comes while the handler runs is requeued without backoff: if the handler fails, it takes its place.
    A message that is answered later (``enable_async``) is not remembered.

    :param handler: called with each :class:`Message`
    :param key: from a Message to what is the same for its copies: any hashable, such as an id in the body
    :param window: seconds for which a key is remembered
    :param store: where; a :class:`MemoryStore` of this object's own if not given
    :param busy_delay: seconds until a copy comes again whose twin is being handled; None for the Reader's own delay
    """

    def __init__(
        self,
        handler: Callable[[Message], object],
        *,
        key: Callable[[Message], Hashable],
        window: float,
        store: Store | None = None,
        busy_delay: float | None = None,
    ) -> None:
        if not callable(handler):
            raise InvalidOption("handler", handler, "it must be callable")
        if not callable(key):
            raise InvalidOption("key", key, "it must be callable")
        if isinstance(window, bool) or not isinstance(window, int | float) or not window > 0:
            raise InvalidOption("window", window, "it must be seconds, above 0")
        self._handler = handler
        self._key = key
        self._window = window
        self.store: Store = MemoryStore() if store is None else store
        self._busy_delay = busy_delay
        #: The messages that are being handled, by key.
        self._busy: dict[Hashable, Message] = {}
        #: Copies finished without being handled.
        self.dropped_count = 0

    def __call__(self, message: Message) -> object:
        """Handle a message, or drop it; for the Reader. May switch."""
        key = self._key(message)
        # One step, so that of two threads only one gets it.
        if self._busy.setdefault(key, message) is not message:
            raise Requeue(delay=self._busy_delay, backoff=False)
        try:
            if self.store.seen(key):
                self.dropped_count += 1
                return None
            result = self._handler(message)
            if result is not False and message.answer != "REQ" and not message.is_async:
                self._remember(key)
            return result
        finally:
            del self._busy[key]

    def _remember(self, key: Hashable) -> None:
        try:
            self.store.remember(key, self._window)
        except Exception:
            # The work is done: requeueing the message would do it again for certain.
            logger.exception("%r was handled, but could not be remembered: a copy would be handled again", key)
