"""How a Reader stops: the order in which connections, messages and handlers end.

1. RDY 0 and CLS everywhere, so that nothing new comes.
2. After nsqd's CLOSE_WAIT, messages that no handler has begun are requeued at once, without backoff. Before it,
   nsqd might deliver them to the Reader that is closing.
3. Handlers that run may answer until the deadline.
4. What is left is requeued, and its handlers are killed.

The Reader closes the connections afterwards.
"""

from __future__ import annotations

import logging
import time

import gevent

from gnsq_like.errors import NSQError
from gnsq_like.reader.flow_control import FlowControl
from gnsq_like.reader.handlers import Handlers
from gnsq_like.reader.message import Message
from gnsq_like.reader.subscription import Subscription
from gnsq_like.runtime.pending_reply import PendingReply

logger = logging.getLogger(__name__)

#: Seconds that CLS and its answer get in any case. What nsqd sends meanwhile is given back; what it sends to a
#: connection that is closed without CLS comes again only when its timeout is over.
_MIN_CLS_TIMEOUT = 0.5


class Stop:
    """The stop of one started Reader: :meth:`end_delivery`, then :meth:`finish`.

    :param name: "topic/channel", for the log
    :param deadline: monotonic time at which the stop waits no longer for handlers
    """

    def __init__(self, name: str, flow: FlowControl, handlers: Handlers, deadline: float) -> None:
        self._name = name
        self._flow = flow
        self._handlers = handlers
        self._deadline = deadline
        #: How many messages were unanswered at the deadline.
        self.left = 0

    def hasten(self, deadline: float) -> None:
        """Bring the deadline forward; a later one changes nothing. Never switches."""
        if deadline < self._deadline:
            self._deadline = deadline
            if self._flow.on_drained is not None:
                self._flow.on_drained()  # to look at the time anew

    def end_delivery(self, subscriptions: list[Subscription]) -> None:
        """Steps 1 and 2. May switch."""
        self._flow.stop()
        for subscription in subscriptions:
            self._flow.close(subscription)
            subscription.connection.set_rdy(0)
        unbegun = self._handlers.close()
        gevent.joinall([gevent.spawn(self._unsubscribe, each, unbegun) for each in subscriptions])

    def _unsubscribe(self, subscription: Subscription, unbegun: list[Message]) -> None:
        patience = max(_MIN_CLS_TIMEOUT, self._deadline - time.monotonic())
        patience = min(patience, subscription.connection.options.connect_timeout)
        try:
            subscription.connection.close_subscription(patience)
        except NSQError as exc:
            logger.info("%s", exc)
        for message in unbegun:
            if message._source is subscription:
                message.requeue(0, backoff=False)

    def finish(self) -> None:
        """Steps 3 and 4. May switch."""
        flow = self._flow
        while flow.in_flight and (seconds := self._deadline - time.monotonic()) > 0:
            woken = PendingReply()
            flow.on_drained = woken.settle
            woken.wait(seconds)
        flow.on_drained = None
        self.left = flow.in_flight
        if self.left:
            logger.warning("stopping with %d messages of %s unanswered", self.left, self._name)
        for subscription in list(flow.subscriptions):
            for message in list(subscription.in_flight):
                if message.answer is None:
                    message.requeue(0, backoff=False)
        self._handlers.kill()
