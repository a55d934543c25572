"""The stop of a Reader: the order in which connections, messages and handlers end.

1. RDY 0 and CLS on all connections, so that no new messages arrive.
2. After nsqd's CLOSE_WAIT, messages whose handler has not started are requeued without delay and backoff. Before it,
   nsqd might deliver them to this Reader again.
3. Running handlers may answer until the deadline.
4. The remaining messages are requeued, and their handlers are killed. A message that its handler has finished is never
   requeued, and its FIN is written before the connection is closed.

The Reader closes the connections afterwards. ``run_until_signal`` is for one Reader, and for several.
"""

from __future__ import annotations

import logging
import signal as signals
import time
from collections.abc import Iterable
from typing import Protocol

import gevent

from gnsq_like.errors import InvalidOption, NSQError, check_seconds
from gnsq_like.reader.flow_control import FlowControl
from gnsq_like.reader.handlers import Handlers
from gnsq_like.reader.message import Message
from gnsq_like.reader.setup import Handler
from gnsq_like.reader.subscription import Subscription
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.hub_calls import is_main_thread
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.signals import on_signals

logger = logging.getLogger(__name__)

#: Seconds allowed for CLS and its reply in any case. Messages that arrive meanwhile are requeued; on a connection
#: closed without CLS they would be delivered again only after their timeout.
_MIN_CLS_TIMEOUT = 0.5


class Stop:
    """The stop of one started Reader: :meth:`begin`, :meth:`end_delivery`, and :meth:`finish`.

    :param name: "topic/channel", for the log
    :param deadline: monotonic time until which running handlers may answer
    """

    def __init__(self, name: str, flow: FlowControl, handlers: Handlers, deadline: float) -> None:
        self._name = name
        self._flow = flow
        self._handlers = handlers
        self._deadline = deadline
        #: Messages unanswered at the deadline.
        self.left = 0
        #: Set by begin(): the connections, and the messages whose handler has not started.
        self._subscriptions: list[Subscription] = []
        self._waiting: list[Message] = []

    def hasten(self, deadline: float) -> None:
        """Bring the deadline forward; a later one changes nothing. Never switches."""
        if deadline < self._deadline:
            self._deadline = deadline
            if self._flow.on_drained is not None:
                self._flow.on_drained()  # wakes finish(), which checks the deadline

    def begin(self, subscriptions: list[Subscription]) -> None:
        """RDY 0, and no handler is started any more. Never switches."""
        self._subscriptions = subscriptions
        self._flow.stop()
        for subscription in subscriptions:
            self._flow.close(subscription)
            subscription.connection.set_rdy(0)
            subscription.forget_dropped()
        self._waiting = self._handlers.close()

    def end_delivery(self) -> None:
        """The rest of step 1, and step 2. May switch."""
        gevent.joinall([gevent.spawn(self._unsubscribe, each) for each in self._subscriptions])

    def _unsubscribe(self, subscription: Subscription) -> None:
        patience = max(_MIN_CLS_TIMEOUT, self._deadline - time.monotonic())
        patience = min(patience, subscription.connection.options.connect_timeout)
        try:
            subscription.connection.close_subscription(patience)
        except NSQError as exc:
            log_soon(logger.info, "%s", exc)
        for message in self._waiting:
            if message in subscription.in_flight:
                message.requeue(0, backoff=False)

    def finish(self) -> None:
        """Steps 3 and 4. May switch."""
        flow = self._flow
        while flow.in_flight and (seconds := self._deadline - time.monotonic()) > 0:
            woken = PendingReply()
            flow.on_drained = woken.settle
            woken.wait(seconds)
        flow.on_drained = None
        # Handled messages are not requeued, even if the hub has not seen their answers yet.
        flow.hub_handle.catch_up()
        self.left = sum(subscription.answer_rest() for subscription in list(flow.subscriptions))
        if self.left:
            log_soon(logger.warning, "stopping %s with %d messages unanswered", self._name, self.left)
        self._handlers.kill()


class Runnable(Protocol):
    """A Reader, or several as one."""

    @property
    def error(self) -> Exception | None: ...

    def start(self) -> None: ...
    def wait(self) -> bool: ...
    def stop(self, timeout: float) -> int: ...


def run_until_signal(runnable: Runnable, stop_timeout: float, handlers: Iterable[Handler]) -> None:
    """Start, and wait until it has stopped: by a signal, by ``stop``, or by itself. May switch.

    Signals are handled only in the main thread, and outside its main greenlet only where the program has no handlers of
    its own. A second SIGINT (a second Ctrl-C) ends the wait for running handlers.

    :param stop_timeout: seconds for running handlers after a signal
    :param handlers: of the Reader, or of each
    :raises InvalidOption: before it starts, if one has no handler, or stop_timeout is no number
    :raises Exception: its ``error``, if it has one
    """
    if any(handler is None for handler in handlers):
        raise InvalidOption("handler", None, "run() calls a handler; without one, iterate over the Reader")
    check_seconds("stop_timeout", stop_timeout)
    runnable.start()
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        runnable.stop(0.0 if len(received) > 1 and number == signals.SIGINT else stop_timeout)

    try:
        with on_signals(_signals_to_take(), stop):
            runnable.wait()
    finally:
        runnable.stop(stop_timeout)
    if runnable.error is not None:
        raise runnable.error


def _signals_to_take() -> list[int]:
    """Those of SIGTERM and SIGINT that a run may handle: a server, in whose greenlets or threads it runs, has its own.

    In the main greenlet, which this run keeps, nobody else stops the program in order.
    """
    found: list[int] = []
    if is_main_thread():
        is_main = gevent.getcurrent().parent is None
        found = [number for number in (signals.SIGTERM, signals.SIGINT) if is_main or _is_pythons(number)]
    if len(found) < 2:
        text = "run() leaves SIGTERM and SIGINT to the program that called it: call stop() at its end"
        logger.info(text)
    return found


def _is_pythons(number: int) -> bool:
    return signals.getsignal(number) in (signals.SIG_DFL, signals.default_int_handler)
