"""Calls the handler for each message, and answers the message by the handler's outcome.

Messages wait here until a worker calls the handler or, if the Reader is iterated over, until a loop takes them. Those
that are delivered too often, too old or too late are not handled (``Limits``). Every outcome of a handler is dealt with
here; no exception of a handler reaches a connection.

They wait in one queue: that of the workers, of the ``Batches``, or of the ``Loops``. With ``spawn="thread"`` a worker
greenlet has its work done in a thread, the answers and the log included: there are the thread-locals and ContextVars
for which a log handler or an error tracker may ask.

Rules for editors: ``_work`` and ``Loops.run`` are on the path of every message, so they make no call that can be left
out there; each would cost 2 to 5 % of the path.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import gevent

from gnsq_like.errors import DecodeError, NSQError, Requeue
from gnsq_like.reader.batch import Batch, Batches
from gnsq_like.reader.message import Message, Outcome, make_decoder
from gnsq_like.reader.setup import Setup
from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.runtime.user_code import ENDS, FailureLog, in_one_line, outcome_of, undone
from gnsq_like.runtime.worker_pool import WorkerPool

logger = logging.getLogger(__name__)

#: Seconds that a stop waits for threads: one that has answered may still write into the log.
_LAST_WORDS = 0.5


def check_result(result: object) -> None:
    """Check the result of a handler. Raises NSQError for False, and for an awaitable, whose work is not done."""
    if (fault := undone(result)) is not None:
        raise NSQError(f"the handler did nothing: {fault}")
    if result is False:
        raise NSQError("the handler returned False")


#: Messages whose deliveries without an attempt are remembered.
_MOST_SPARED = 10_000


class Limits:
    """Rejects messages that were delivered too often, are too old, or are too late to be answered in time.

    :param threads: where ``on_giving_up`` and ``on_expired`` are called, as the handler is, if it is not called in
        greenlets
    """

    def __init__(self, setup: Setup, threads: ThreadPool | None) -> None:
        self._setup, options = setup, setup.options
        self._max_attempts: float = options.max_attempts or math.inf
        self._max_age = options.max_age
        #: Deliveries above which :meth:`refuses` must be asked, as it must be for each overdue message.
        self.asked_above: float = self._max_attempts if self._max_age is None else -1
        self._threads = threads
        self._failures = FailureLog(logger, every=options.log_tracebacks)
        #: How many deliveries of a message were no attempts; the oldest first.
        self._spared: dict[tuple[str, str, str], int] = {}

    def refuses(self, message: Message) -> bool:
        """Whether it is not to be handled: too late, delivered too often, too old. It is answered then. May switch."""
        if message.is_overdue:
            message._source.drop(message)  # nsqd delivers it again; handling it now would be one time too many
            return True
        if message.attempts > self._max_attempts and self._permitted(message) < 0:
            message.failure = NSQError(
                f"delivered {message.attempts} times; the delivery before this one ended with a crash, a lost "
                "connection, a timeout or requeue()"
            )
            self._give_up(message, Outcome.GIVEN_UP)
            return True
        return self._has_expired(message)

    def failed(self, message: Message, exc: BaseException, backoff: bool) -> bool:
        """A delivery has failed. If it was the last one permitted, the message is given up now. May switch.

        Not if nsqd delivers it again anyway: it would be given up twice.

        :returns: whether it was, and needs no other answer
        """
        if message.attempts < self._max_attempts or self._permitted(message) > 0 or message.is_lost:
            return False
        message.failure = exc
        message.is_async = False
        self._give_up(message, Outcome.FAILED_LAST if backoff else Outcome.GIVEN_UP)
        return True

    def spare(self, message: Message) -> None:
        """This delivery was no attempt."""
        key = message.nsqd_address, message.topic, message.id
        self._spared[key] = self._spared.pop(key, 0) + 1
        if len(self._spared) > _MOST_SPARED:
            self._spared.pop(next(iter(list(self._spared))), None)  # whole calls: other threads come here

    def _permitted(self, message: Message) -> float:
        """How many further attempts it may have; below 0 if this delivery is one too many."""
        spared = self._spared.get((message.nsqd_address, message.topic, message.id), 0)
        return self._max_attempts - (message.attempts - spared)

    def _give_up(self, message: Message, outcome: Outcome) -> None:
        failure, on_giving_up = message.failure, self._setup.on_giving_up
        if self._finish_unhandled(message, "on_giving_up", on_giving_up, outcome):
            logger.error(
                "gave up message %s of %s at delivery %d: %s%s",
                message.id,
                self._setup.name,
                message.attempts,
                None if failure is None else in_one_line(failure),
                "; it is lost, because there is no on_giving_up" if on_giving_up is None else "",
                extra=message.log_fields,
            )
        message.failure = None  # its frames hold the message

    def _has_expired(self, message: Message) -> bool:
        """Whether the message is too old to be handled; it is finished then. May switch."""
        if self._max_age is None or time.time() - message.timestamp <= self._max_age:
            return False
        if self._finish_unhandled(message, "on_expired", self._setup.on_expired, Outcome.EXPIRED):
            age = time.time() - message.timestamp
            text = "message %s of %s has expired: it is %.0f s old"
            logger.info(text, message.id, self._setup.name, age, extra=message.log_fields)
        return True

    def _finish_unhandled(
        self,
        message: Message,
        name: str,
        function: Callable[[Message], object] | None,
        outcome: Outcome,
    ) -> bool:
        """Call the user's function instead of the handler, and finish the message.

        :returns: False if that failed; then the message is requeued, and the failure reported
        """
        if function is not None:
            attempt = partial(self._try, name, function, outcome)
            error = attempt(message) if self._threads is None else self._threads.call(attempt, message)
            if error is not None:
                self._setup.hooks.call("on_error", message.nsqd_address, error)
                return False
        message._handled(outcome)
        return True

    def _try(
        self, name: str, function: Callable[[Message], object], outcome: Outcome, message: Message
    ) -> NSQError | None:
        """Call the user's function, where the handler would run. If it fails, requeue the message, and log it."""
        with ExitStack() as ended:
            ended.callback(message.requeue, 0, backoff=False)
            result, exc = outcome_of(function, message)
            ended.pop_all()
        if (fault := undone(result)) is not None:
            exc = NSQError(f"{name} did nothing: {fault}")
        if exc is None:
            return None
        if message.answer is None:
            message.requeue(backoff=outcome is Outcome.FAILED_LAST)
        self._failures.log(f"{name} raised; message {message.id} is requeued, not lost", exc, message.log_fields)
        error = NSQError(f"{name} failed for message {message.id}: {exc!r}")
        error.__cause__ = exc
        return error


class Loops:
    """For iteration: messages wait here until a loop takes them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._messages: deque[Message] = deque()
        #: Greenlets inside the body of a loop.
        self._bodies: set[object] = set()
        #: The loops that wait for a message.
        self._turns: deque[PendingReply] = deque()
        self._stopped = False

    @property
    def waiting(self) -> int:
        """The number of messages that no loop has taken."""
        return len(self._messages)

    def put(self, messages: Iterable[Message], _polled_at: float = 0.0) -> None:
        """Hand out messages. Never switches."""
        self._messages.extend(messages)
        self._wake()

    def _wake(self) -> None:
        while self._turns:
            self._turns.popleft().settle()

    def run(self, timeout: float | None) -> Generator[Message]:
        """One loop: messages as they arrive, until :meth:`stop`. May switch.

        :param timeout: seconds to wait for all of them
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        greenlet: object = None  # the one that has a message
        limits = self._limits
        try:
            while not self._stopped:
                if not self._messages:
                    self._bodies.discard(greenlet)
                    greenlet = None
                    turn = PendingReply()
                    self._turns.append(turn)
                    if not turn.wait(None if deadline is None else deadline - time.monotonic()):
                        self._turns.remove(turn)
                        return
                    continue
                message = self._messages.popleft()
                if gevent.getcurrent() is not greenlet:  # another greenlet may continue the iterator
                    self._bodies.discard(greenlet)
                    greenlet = gevent.getcurrent()
                    self._bodies.add(greenlet)
                try:
                    if not (message.is_overdue or message.attempts > limits.asked_above) or not limits.refuses(message):
                        yield message
                finally:
                    if message.answer is None:
                        message._leave()
        finally:
            self._bodies.discard(greenlet)

    def take_waiting(self) -> list[Message]:
        """Remove and return the messages that no loop has taken. Never switches."""
        taken = list(self._messages)
        self._messages.clear()
        return taken

    def is_worker(self, greenlet: object) -> bool:
        """Whether the body of a loop runs in this greenlet."""
        return greenlet in self._bodies

    def stop(self) -> None:
        """End the loops that wait for a message now, the others after their bodies. Never switches."""
        self._stopped = True
        self._wake()


class Handlers:
    """Runs the handlers of one started Reader.

    :param is_starved: whether nsqd sends nothing more until messages are answered
    :param loop: the Reader's control loop
    """

    def __init__(self, setup: Setup, is_starved: Callable[[], bool], loop: ControlLoop) -> None:
        handler, options, concurrency = setup.handler, setup.options, setup.concurrency
        self._name = setup.name
        self._failures = FailureLog(logger, every=options.log_tracebacks)
        #: See ``Message.data``.
        self.decode = make_decoder(options.decoder)
        self._threads = ThreadPool(concurrency) if options.spawn == "thread" else None
        self._limits = Limits(setup, self._threads)
        #: See ``Source.give_up``.
        self.give_up = self._limits.failed
        #: Whether the Reader is stopping.
        self._closed = False
        #: Called with each message, or with lists of them; None if the Reader is iterated over.
        self._handler: Any = handler.handler if isinstance(handler, Batch) else handler
        #: Used only if the Reader is iterated over.
        self._loops = Loops(self._limits)
        work: Callable[[Any], object] = self._work_on_batch if isinstance(handler, Batch) else self._work
        if self._threads is not None:
            work = partial(self._threads.call, work)
        #: Where messages wait; and what calls the handler.
        self._queue: WorkerPool[Message] | Batches | Loops
        self._workers: WorkerPool[Any]
        if isinstance(handler, Batch):
            self._queue = Batches(handler, work, concurrency, is_starved, loop, self._failed)
            self._workers = self._queue.workers
        else:
            self._workers = WorkerPool(work, concurrency, failed=lambda message, exc: self._failed([message], exc))
            self._queue = self._loops if handler is None else self._workers

    # -- waiting messages ---------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of messages whose handler has not started."""
        return self._queue.waiting

    @property
    def busy(self) -> int:
        """The number of running handlers."""
        return self._workers.busy

    def put(self, messages: list[Message], polled_at: float = 0.0) -> None:
        """Queue messages for the handler; after :meth:`close`, requeue them at once. Never switches.

        :param polled_at: when the hub polled its sockets, if the caller knows
        """
        if self._closed:
            for message in messages:
                message.requeue(0, backoff=False)
        else:
            self._queue.put(messages, polled_at)

    def begin_waiting(self) -> None:
        """Begin messages that wait, if they may begin; usually they have. Never switches."""
        self._workers.begin_waiting()

    def get(self, timeout: float | None) -> Message | None:
        """The next message, which its taker answers; None after ``timeout`` seconds or :meth:`close`. May switch."""
        with closing(self.loop(timeout)) as messages:
            return next(messages, None)

    def loop(self, timeout: float | None = None) -> Generator[Message]:
        """For iteration: messages as they arrive, until :meth:`close`. May switch.

        :param timeout: seconds to wait for all of them
        """
        return self._loops.run(timeout)

    def close(self) -> list[Message]:
        """Start no more handlers; messages that still arrive are requeued at once. Never switches.

        :returns: the messages whose handler has not started
        """
        waiting = self.forked_child()
        self._loops.stop()
        return waiting

    def forked_child(self) -> list[Message]:
        """As :meth:`close`, but without waking the loops, which are the parent's. Never switches."""
        self._closed = True
        return self._queue.take_waiting()

    def take_from(self, messages: Collection[Message]) -> list[Message]:
        """Remove and return those of these messages whose handler has not started. Never switches."""
        waiting = others = self._queue.take_waiting()
        try:
            others = [message for message in waiting if message not in messages]
        finally:
            self.put(others)
        return [message for message in waiting if message in messages]

    # -- workers ------------------------------------------------------------------------------------

    def is_worker(self, greenlet: object) -> bool:
        """Whether a handler, or the body of a loop, runs in this greenlet."""
        return self._workers.is_worker(greenlet) or self._loops.is_worker(greenlet)

    def set_concurrency(self, concurrency: int) -> None:
        """Set how many handlers may run at once. Never switches."""
        self._workers.set_concurrency(concurrency)
        if self._threads is not None:
            self._threads.set_width(concurrency)

    def kill(self) -> None:
        """Kill running handlers with GreenletExit; threads cannot be killed. May switch."""
        self._workers.kill()
        if self._threads is not None and (running := self._threads.close(_LAST_WORDS)):
            log_soon(logger.warning, "%d handlers of %s are still running in threads", running, self._name)

    # -- in a worker: a greenlet, or its thread -----------------------------------------------------

    def _work(self, message: Message) -> None:
        """Handle and answer one message."""
        try:
            limits = self._limits
            if (message.is_overdue or message.attempts > limits.asked_above) and limits.refuses(message):
                return
            if self.decode is not None:
                _ = message.data  # the handler is not called if it cannot be decoded
            result = self._handler(message)
            if result is not None:
                check_result(result)
            if message.answer is None:
                if message.is_async:
                    message._leave()
                else:
                    message._source.finish(message)
        except BaseException as exc:
            self._failed([message], exc)

    def _work_on_batch(self, messages: list[Message]) -> None:
        """Handle and answer the messages of a batch together, except those that are not to be handled."""
        above = -1 if self.decode is not None else self._limits.asked_above
        try:
            messages = [
                message
                for message in messages
                if not (message.is_overdue or message.attempts > above) or self._is_to_be_handled(message)
            ]
            if messages:
                check_result(self._handler(list(messages)))
                for message in messages:  # as _handled(), without its call
                    if message.answer is None:
                        if message.is_async:
                            message._leave()
                        else:
                            message._source.finish(message)
        except BaseException as exc:
            self._failed(messages, exc)

    def _is_to_be_handled(self, message: Message) -> bool:
        if self._limits.refuses(message):
            return False
        try:
            _ = message.data
        except DecodeError as exc:
            self._failed([message], exc)
            return False
        return True

    def _failed(self, messages: list[Message], exc: BaseException) -> None:
        # Answer before logging, which may switch and be interrupted by a Timeout that the handler left running.
        for message in messages:
            message.fail(exc)
        if isinstance(exc, Requeue):
            for message in [] if exc.counts else messages:
                self._limits.spare(message)
            return
        if isinstance(exc, ENDS):
            raise exc  # GreenletExit ends this worker: who killed it may wait for that
        what, fields = f"message {messages[0].id}", messages[0].log_fields
        if isinstance(self._queue, Batches):
            what = f"a batch of {len(messages)} message{'' if len(messages) == 1 else 's'}"
            fields["message_ids"] = [message.id for message in messages]
        self._failures.log(f"the handler of {self._name} failed with {what}", exc, fields)
