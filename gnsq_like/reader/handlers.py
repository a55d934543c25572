"""From messages to answers: what a Reader does with what came.

Messages wait here until a worker has its handler called, or, in the pulled form, until somebody takes
them. How the handler ends decides the answer: every way to end is met here, and nothing that a handler
does reaches a connection's greenlet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import gevent

from gnsq_like.errors import NSQError, Requeue
from gnsq_like.reader.batch import Batch, BatchCollector
from gnsq_like.reader.message import Message, Source
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.runtime.worker_pool import WorkerPool

logger = logging.getLogger(__name__)

#: What a Reader is given to handle messages; None for the pulled form.
Handler = Callable[[Message], object] | Batch | None


def _call(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


class Handlers:
    """The messages of one started Reader that are not answered by a handler yet.

    :param handler: called with each message
    :param name: "topic/channel", for the log
    :param concurrency: handlers that run at once
    :param in_threads: whether they run in threads of their own
    :param max_attempts: deliveries after which a message is given up; 0 for never
    :param on_giving_up: called with such a message, in place of the handler
    :param on_error: called with (nsqd's address, error) when that fails
    :param is_starved: whether nsqd sends nothing more before something is answered
    """

    def __init__(
        self,
        handler: Handler,
        name: str,
        concurrency: int,
        *,
        in_threads: bool,
        max_attempts: int,
        on_giving_up: Callable[[Message], object] | None,
        on_error: Callable[[str, NSQError], object],
        is_starved: Callable[[], bool],
    ) -> None:
        self._name = name
        self._max_attempts = max_attempts
        self._on_error = on_error
        self._workers: WorkerPool[Message] = WorkerPool(self._work, concurrency)
        self._threads = ThreadPool(concurrency) if in_threads else None
        #: With a Batch: what gathers messages for it.
        self._collector: BatchCollector | None = None
        #: What a worker calls with a message; None for the pulled form.
        self._handle: Callable[[Message], object] | None
        if isinstance(handler, Batch):
            self._collector = self._handle = handler.begin(
                concurrency,
                lambda: is_starved() and not self._workers.waiting,
                _call if self._threads is None else self._threads.call,
            )
        elif handler is None or self._threads is None:
            self._handle = handler
        else:
            self._handle = partial(self._threads.call, handler)
        # What is called in place of the handler may block as it may, and needs what its thread has.
        self._on_giving_up = on_giving_up
        if on_giving_up is not None and self._threads is not None:
            self._on_giving_up = partial(self._threads.call, on_giving_up)
        #: Whether the Reader is stopping.
        self._closed = False
        #: For the pulled form: messages to hand out, and the loops that wait for one.
        self._pulled: deque[Message] = deque()
        self._pulling: deque[PendingReply] = deque()

    # -- what waits ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many messages no handler has begun."""
        gathered = 0 if self._collector is None else self._collector.waiting
        return len(self._pulled) + self._workers.waiting + gathered

    @property
    def busy(self) -> int:
        """How many handlers run."""
        return self._workers.busy + (0 if self._collector is None else self._collector.busy)

    def put(self, messages: list[Message]) -> None:
        """Have these handled; after :meth:`close` they go back to nsqd at once. Never switches."""
        if self._closed:
            for message in messages:
                message.requeue(0, backoff=False)
        elif self._handle is not None:
            self._workers.put(messages)
        else:
            self._pulled.extend(messages)
            self.wake()

    def pull(self) -> Message | None:
        """For the pulled form: the next message, after waiting for one; None after a :meth:`wake`. May switch."""
        while self._pulled:
            message = self._pulled.popleft()
            if not message._is_overdue:
                return message
            message._source.drop(message)
        turn = PendingReply()
        self._pulling.append(turn)
        turn.wait()
        return None

    def close(self) -> list[Message]:
        """Begin no further handler; what comes from now on is requeued at once. Never switches.

        :returns: the messages that no handler has begun
        """
        self._closed = True
        unbegun = self.take_unbegun()
        self.wake()
        return unbegun

    def wake(self) -> None:
        """Let those who wait in :meth:`pull` look again. Never switches."""
        while self._pulling:
            self._pulling.popleft().settle()

    def take_unbegun(self) -> list[Message]:
        """Take back the messages that no handler has begun. Never switches."""
        gathered = [] if self._collector is None else self._collector.take_waiting()
        taken = [*gathered, *self._workers.take_waiting(), *self._pulled]
        self._pulled.clear()
        return taken

    def drop(self, lost: Source) -> None:
        """Forget the unbegun messages of a lost connection: nsqd delivers them again. Never switches."""
        unbegun = self.take_unbegun()
        for message in unbegun:
            if message._source is lost:
                lost.drop(message)
        self.put([message for message in unbegun if message._source is not lost])

    # -- who works ----------------------------------------------------------------------------------

    def is_worker(self, greenlet: object) -> bool:
        """Whether a handler runs in this greenlet."""
        return self._workers.is_worker(greenlet) or (
            self._collector is not None and self._collector.is_worker(greenlet)
        )

    def set_concurrency(self, concurrency: int) -> None:
        """How many handlers may run at once, from now on. Never switches."""
        self._workers.concurrency = concurrency
        self._workers.put(())
        if self._collector is not None:
            self._collector.set_concurrency(concurrency)
        if self._threads is not None:
            self._threads.width = concurrency

    def kill(self) -> None:
        """End the handlers that run, with GreenletExit; threads cannot be ended. May switch."""
        self._workers.kill()
        if self._collector is not None:
            self._collector.kill()
        if self._threads is not None and (running := self._threads.close()):
            logger.warning("%d handlers of %s still run in their threads", running, self._name)

    # -- one message --------------------------------------------------------------------------------

    def _work(self, message: Message) -> None:
        """In a worker greenlet: one message, from its handler to its answer."""
        if message._is_overdue:
            message._source.drop(message)  # nsqd delivers it again: handling it now would be once too often
            return
        try:
            if self._max_attempts and message.attempts > self._max_attempts:
                self._give_up(message)
            elif self._handle(message) is False:  # type: ignore[misc]
                if message.answer is None:
                    message.requeue()
                logger.error("the handler of %s returned False: message requeued", self._name)
            elif message.answer is None and not message.is_async:
                message.finish()
        except BaseException as exc:
            # The answer first: writing the log may switch, and a timeout that the handler left may end it.
            message._requeue_for(exc)
            if isinstance(exc, Requeue | gevent.GreenletExit):
                return
            if not isinstance(exc, Exception | gevent.Timeout):
                raise  # SystemExit, KeyboardInterrupt: they end more than this
            logger.warning("the handler of %s failed with message %s", self._name, message.id, exc_info=exc)

    def _give_up(self, message: Message) -> None:
        if self._on_giving_up is not None:
            try:
                self._on_giving_up(message)
            except (Exception, gevent.Timeout) as exc:
                if message.answer is None:
                    message.requeue(backoff=False)
                logger.exception("on_giving_up raised: message %s is requeued, not lost", message.id)
                error = NSQError(f"on_giving_up failed for message {message.id}: {exc!r}")
                error.__cause__ = exc
                self._on_error(message.nsqd_address, error)
                return
        if message.answer is None and not message.is_async:
            message.answer = "FIN"
            message._source.give_up(message)
        logger.warning("gave up message %s of %s after %d deliveries", message.id, self._name, message.attempts - 1)
