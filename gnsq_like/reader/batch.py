"""Handlers that take many messages at a time.

A ``Batch`` is made by the user: a handler and its limits, without running parts. A started Reader makes a
``BatchCollector`` of it. Messages reach it as lists, those of one read together, or one by one where each is looked at
first (to be decoded, or given up). They stay *pending* until a batch is due:

- ``size`` are pending;
- the oldest has waited ``interval``, or half of the time left until its deadline;
- the Reader is starved: nsqd sends nothing until messages are answered, so waiting is pointless.

A due batch is a token in the queue of the collector's own ``WorkerPool``. A worker picks its messages when it begins,
so while all workers are busy, batches grow up to ``size``.

Rules for editors: ``put`` and ``_check`` never switch. ``_check`` runs in the hub, after all messages
of one read have been added; otherwise a large read would look starved at its first message.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat

from gevent import get_hub

from gnsq_like.errors import InvalidOption, NSQError, Requeue
from gnsq_like.reader.message import Message
from gnsq_like.runtime.thread_pool import NoThreads, ThreadPool
from gnsq_like.runtime.timer import Soon, Timer
from gnsq_like.runtime.user_code import ENDS, FailureLog, check_callable, undone
from gnsq_like.runtime.worker_pool import WorkerPool

logger = logging.getLogger(__name__)

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
        if not isinstance(interval, int | float) or isinstance(interval, bool) or not 0 < interval < float("inf"):
            raise InvalidOption("interval", interval, "it must be seconds, above 0")
        self.handler = handler
        self.size = size
        self.interval = interval

    def __repr__(self) -> str:
        return f"<Batch {self.handler!r} size={self.size} interval={self.interval:g}>"


class BatchCollector:
    """Collects the messages of a started Reader for its Batch: :meth:`put` them.

    :param name: "topic/channel", for the log
    :param is_starved: whether no message can arrive before some are answered
    :param threads: where handlers are called
    :param has_expired: whether a message is too old to be handled, and has been finished; may switch. None if messages
        do not expire
    :param log_tracebacks: the option of this name
    """

    def __init__(
        self,
        batch: Batch,
        name: str,
        concurrency: int,
        is_starved: Callable[[], bool],
        threads: ThreadPool | NoThreads,
        has_expired: Callable[[Message], bool] | None = None,
        *,
        log_tracebacks: bool = False,
    ) -> None:
        self._batch = batch
        self._name = name
        self._is_starved = is_starved
        self._threads = threads
        self._has_expired = has_expired
        self._failures = FailureLog(logger, every=log_tracebacks)
        self._workers: WorkerPool[None] = WorkerPool(self._work, concurrency)
        self._check_soon = Soon(get_hub().loop, self._check)
        #: Messages that wait for their batch, the oldest first.
        self._pending: deque[Message] = deque()
        #: Seconds that a message may wait: the interval, or less if msg_timeout is short.
        self._patience = float(batch.interval)
        self._timer = Timer(self._check)

    @property
    def waiting(self) -> int:
        """The number of messages that wait for their batch."""
        return len(self._pending)

    @property
    def busy(self) -> int:
        """The number of batches being handled."""
        return self._workers.busy

    def is_worker(self, greenlet: object) -> bool:
        """Whether this greenlet handles batches."""
        return self._workers.is_worker(greenlet)

    def set_concurrency(self, concurrency: int) -> None:
        """Set how many batches may be handled at once. Never switches."""
        self._workers.set_concurrency(concurrency)

    def take_waiting(self) -> list[Message]:
        """Remove and return the messages that are in no batch yet. Never switches."""
        taken = list(self._pending)
        self._pending.clear()
        self._timer.cancel()
        return taken

    def kill(self) -> None:
        """Kill running handlers with GreenletExit. May switch."""
        self._timer.cancel()
        self._workers.kill()

    # -- collecting ---------------------------------------------------------------------------------

    def put(self, messages: list[Message]) -> None:
        """Add messages of one read, or one that was looked at. Never switches."""
        if messages:
            first = messages[0]
            self._pending.extend(messages)
            self._patience = min(self._patience, (first.timeout_at - first.received_at) * _WAITING_SHARE)
            self._check_soon()

    def _check(self) -> None:
        """Start the batches that are due."""
        if not self._pending:
            return
        batches, rest = divmod(len(self._pending), self._batch.size)
        due_at = self._pending[0].received_at + self._patience
        if rest and (time.monotonic() >= due_at or self._is_starved()):
            batches += 1
        self._workers.put(repeat(None, max(0, batches - self._workers.waiting)))
        if not batches:
            self._timer.set_by(due_at)

    # -- in a worker --------------------------------------------------------------------------------

    def _work(self, _: None) -> None:
        messages = self._take()
        if messages:
            self._handle(messages)

    def _take(self) -> list[Message]:
        messages: list[Message] = []
        pending = self._pending
        while pending and len(messages) < self._batch.size:
            message = pending.popleft()
            if message.is_overdue or not message._source.alive:
                message._source.drop(message)  # nsqd delivers it again
            elif message.answer is None:
                messages.append(message)
        if pending:
            self._check_soon()
        return messages

    def _handle(self, messages: list[Message]) -> None:
        """Call the handler and answer its messages."""
        try:
            if self._has_expired is not None:
                messages = [message for message in messages if not self._has_expired(message)]
            if not messages:
                return
            if self._threads.call(self._try, messages):
                _finish(messages)
        except BaseException as exc:
            self._failed(messages, exc)

    def _try(self, messages: list[Message]) -> bool:
        """Call the handler, here or in a thread, and deal with its failure there; whether it has handled them."""
        try:
            check_result(self._batch.handler(list(messages)))
        except BaseException as exc:
            self._failed(messages, exc)
            return False
        return True

    def _failed(self, messages: list[Message], exc: BaseException) -> None:
        # Answer before logging, which may switch and be interrupted by a Timeout that the handler left running.
        self._threads.about_to_return()
        for message in messages:
            message.fail(exc)
        if isinstance(exc, Requeue):
            return
        if isinstance(exc, ENDS):
            raise exc
        count = len(messages)
        text = f"the handler of {self._name} failed with a batch of {count} message{'' if count == 1 else 's'}"
        self._failures.log(text, exc, _fields(messages))


def check_result(result: object) -> None:
    """Check the result of a handler. Raises NSQError for False, and for an awaitable, whose work is not done."""
    if (fault := undone(result)) is not None:
        raise NSQError(f"the handler did nothing: {fault}")
    if result is False:
        raise NSQError("the handler returned False")


def _finish(messages: list[Message]) -> None:
    """Finish messages whose handler has returned. Never switches."""
    for message in messages:
        if message.answer is None:
            if message.is_async:
                message._leave()
            else:
                message._source.finish(message)


def _fields(messages: list[Message]) -> dict[str, object]:
    """Further fields of log records about a batch: those of its first message, and all ids."""
    return {**messages[0].log_fields, "message_ids": [message.id for message in messages]}
