"""Handlers that take many messages at a time.

A ``Batch`` is made by the user: a handler and its limits, without running parts. A started Reader makes ``Batches`` of
it, to which messages come as lists, those of one read together. They stay *pending* until a batch is due:

- ``size`` are pending;
- the oldest has waited ``interval``, or half of the time left until its deadline;
- the Reader is starved: nsqd sends nothing until messages are answered, so waiting is pointless.

A due batch is an empty list in the queue of a ``WorkerPool``. A worker fills it when it begins, so while all workers
are busy, batches grow up to ``size``.

Rules for editors: ``put`` and ``_check`` never switch. ``_check`` runs in the hub, after the messages of a read have
been accounted for; otherwise a large read would look starved at its first message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gevent import get_hub

from gnsq_like.errors import InvalidOption, check_seconds
from gnsq_like.reader.message import Message
from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.timer import Soon
from gnsq_like.runtime.user_code import check_callable
from gnsq_like.runtime.worker_pool import WorkerPool

#: The part of the time until its deadline that a message may wait for its batch; the rest is for the handler.
_WAITING_SHARE = 0.5


Handler = Callable[[list[Message]], "bool | None"]


class Batch:
    """A handler for a :class:`Reader` that is called with lists of messages.

    ::

        def store(messages):
            database.insert_many([message.body for message in messages])

        Reader("clicks", "archive", Batch(store, size=100, interval=1.0), max_in_flight=200)

    The messages of a list are answered together: finished when the handler returns, requeued when it raises or returns
    False. ``raise Requeue(delay=, backoff=)`` requeues them without logging an error. Messages that the handler
    answered itself, or called ``enable_async`` on, are left as they are. A failed batch counts as one failure for
    backoff.

    With a ``max_in_flight`` below ``size``, batches cannot fill up and are as large as it allows. ``concurrency`` is
    the number of batches handled at once.

    :param handler: called with a list of 1 to ``size`` :class:`Message`
    :param size: maximum number of messages in a batch
    :param interval: maximum seconds that a message waits for its batch to fill up
    :raises InvalidOption: if the handler is asynchronous, a generator function, or takes other arguments; if size is
        below 1, or interval is not a positive number
    """

    def __init__(self, handler: Handler, size: int = 100, interval: float = 1.0) -> None:
        check_callable("handler", handler, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidOption("size", size, "it must be an integer, 1 or more")
        check_seconds("interval", interval, above=0)
        self.handler = handler
        self.size = size
        self.interval = interval

    def __repr__(self) -> str:
        return f"<Batch {self.handler!r} size={self.size} interval={self.interval:g}>"


class Batches:
    """The messages of a started Reader that wait for their batch: :meth:`put` them.

    :param work: called with each batch, in a worker
    :param concurrency: how many batches are worked on at once
    :param is_starved: whether no message can arrive before some are answered
    :param loop: the Reader's control loop
    :param failed: see WorkerPool
    """

    def __init__(
        self,
        batch: Batch,
        work: Callable[[list[Message]], object],
        concurrency: int,
        is_starved: Callable[[], bool],
        loop: ControlLoop,
        failed: Callable[[list[Message], Exception], object],
    ) -> None:
        self._batch = batch
        self._work = work
        self._is_starved = is_starved
        self._loop = loop
        self.workers: WorkerPool[list[Message]] = WorkerPool(self._begin, concurrency, failed=failed)
        self._check_soon = Soon(get_hub().loop, self._check)
        #: Messages that wait for their batch, the oldest first.
        self._pending: deque[Message] = deque()
        #: Seconds that a message may wait: the interval, or less if msg_timeout is short.
        self._patience = float(batch.interval)

    @property
    def waiting(self) -> int:
        """The number of messages that wait for their batch."""
        return len(self._pending)

    def put(self, messages: list[Message], _polled_at: float = 0.0) -> None:
        """Add messages of one read. Never switches."""
        if messages:
            first = messages[0]
            self._pending.extend(messages)
            self._patience = min(self._patience, (first.timeout_at - first.received_at) * _WAITING_SHARE)
            self._check_soon()

    def take_waiting(self) -> list[Message]:
        """Remove and return the messages that are in no batch yet. Never switches."""
        taken = list(self._pending)
        self._pending.clear()
        self._loop.cancel(self._check)
        return taken

    def _check(self) -> None:
        """Start the batches that are due."""
        if not self._pending:
            return
        batches, rest = divmod(len(self._pending), self._batch.size)
        due_at = self._pending[0].received_at + self._patience
        if rest and (time.monotonic() >= due_at or self._is_starved()):
            batches += 1
        self.workers.put([] for _ in range(batches - self.workers.waiting))
        if not batches:
            self._loop.by(due_at, self._check)

    def _begin(self, messages: list[Message]) -> None:
        """In a worker: fill this batch, and work on it."""
        pending = self._pending
        while pending and len(messages) < self._batch.size:
            message = pending.popleft()
            if not message._source.alive:
                message._source.drop(message)  # nsqd delivers it again
            elif message.answer is None:
                messages.append(message)
        if pending:
            self._check_soon()
        if messages:
            self._work(messages)
