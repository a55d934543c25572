"""Consuming: ``Reader`` wires connections, discovery, workers and flow control together.

Who does what: ``Discovery`` reports which nsqds there are, ``Roster`` says when each is tried, a connection's
reader greenlet hands up messages and its end, ``Handling`` has them handled and answered, ``Flow`` alone
sends RDY. The Reader keeps the table of connections, one for an address at most, and starts and stops the
rest.

Nothing happens in the constructor: no socket, no greenlet, no lock.
"""

from __future__ import annotations

import logging
import random
import signal as signals
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_like.addresses import Address, parse_addresses
from gnsq_like.connection.connection import Connection
from gnsq_like.discovery.redial import Redialer
from gnsq_like.errors import ConnectionLost, InvalidOption, NotRunning, NsqdError, NSQError
from gnsq_like.http.url import check_addresses
from gnsq_like.options import ReaderOptions, make_options
from gnsq_like.policy.backoff import Backoff, Strategy, exponential, full_jitter, sound
from gnsq_like.reader.batch import Batch
from gnsq_like.reader.flow_control import FlowControl
from gnsq_like.reader.handlers import Handler, Handlers
from gnsq_like.reader.message import Message
from gnsq_like.reader.subscription import Subscription
from gnsq_like.runtime import at_fork
from gnsq_like.runtime.hook_runner import HookRunner
from gnsq_like.runtime.hub_calls import HubHandle, forget_here, handle_here
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.watchdog import Watchdog
from gnsq_like.wire.frames import RawMessage
from gnsq_like.wire.names import encode_channel, encode_topic
from gnsq_like.wire.negotiated import Authorized

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller

logger = logging.getLogger(__name__)

#: Seconds that CLS and its answer get in any case. What nsqd sends meanwhile is given back; what it sends to a
#: connection that is closed without, comes again only when its timeout is over.
_GOODBYE = 0.5
#: A Reader is starved when a connection holds so much of what its RDY may become (as go-nsq has it).
_STARVED_SHARE = 0.85


class Reader:
    """Consumes a topic through a channel; calls a handler for each message, or is iterated over.

    The handler runs in a greenlet, may block, and up to ``concurrency`` run at once. When it returns the
    message is finished; when it raises, requeued. ``raise Requeue(delay=, backoff=)`` requeues quietly; a
    return value of False requeues and logs an error, for other clients mean that by it. Without a handler,
    iterate: ``for message in reader: with message: ...``.

    :param topic: topic name
    :param channel: channel name
    :param handler: called with each :class:`Message`; a :class:`Batch` is called with lists of them
    :param nsqd_tcp_addresses: nsqds to connect to: "host:port", "[ipv6]:port" or "unix:/path", or several
    :param lookupd_http_addresses: nsqlookupds that say which nsqds have the topic: "host:port" or URLs
    :param on_connect: hook, called with (address) when a connection has subscribed
    :param on_disconnect: hook, called with (address, error) when it is gone; error is None after a stop
    :param on_error: hook, called with (address, error) for what went wrong and ends nothing: a failed try to
        connect, a nsqlookupd without an answer, a FIN, REQ or TOUCH that nsqd refused
    :param on_auth: hook, called with (address, authorized) when nsqd took the ``auth_secret``; authorized has
        ``identity``, ``identity_url`` and ``permission_count``
    :param on_backoff: hook, called with (level, seconds) when backoff begins or changes; (0, 0.0) at its end
    :param on_giving_up: called with a message that was delivered more than ``max_attempts`` times, in place of
        the handler; when it returns the message is finished, when it raises, requeued without backoff
    :param options: see :class:`gnsq_like.options.ReaderOptions`; durations in seconds, sizes in bytes
    :raises InvalidName, InvalidAddress, InvalidOption: for what is wrong

    Next: :meth:`start` and :meth:`stop`, or :meth:`run`, or a ``with`` block, or iteration.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler = None,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        on_connect: Callable[[str], object] | None = None,
        on_disconnect: Callable[[str, NSQError | None], object] | None = None,
        on_error: Callable[[str, NSQError], object] | None = None,
        on_auth: Callable[[str, Authorized], object] | None = None,
        on_backoff: Callable[[int, float], object] | None = None,
        on_giving_up: Callable[[Message], object] | None = None,
        **options: Any,
    ) -> None:
        encode_topic(topic)
        encode_channel(channel)
        if handler is not None and not isinstance(handler, Batch) and not callable(handler):
            raise InvalidOption("handler", handler, "it must be callable")
        self.topic = topic
        self.channel = channel
        self._name = f"{topic}/{channel}"
        self.options = make_options(ReaderOptions, options)
        self._handler = handler
        self._fixed = parse_addresses(nsqd_tcp_addresses)
        self._lookupds = check_addresses(lookupd_http_addresses)
        if not self._fixed and not self._lookupds:
            raise InvalidOption("nsqd_tcp_addresses", (), "give nsqd_tcp_addresses, lookupd_http_addresses, or both")
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._on_error = on_error
        self._on_auth = on_auth
        self._on_backoff = on_backoff
        self._on_giving_up = on_giving_up
        self._max_in_flight = self.options.max_in_flight
        self._state = "new"
        self._paused = False
        self._hooks = HookRunner()
        #: Monotonic time at which a stop waits no longer for handlers; only a stop sets it, and may bring it forward.
        self._deadline = 0.0
        #: What run() raises: every nsqd refuses in a way that repeating cannot cure.
        self._fatal: NSQError | None = None
        self._subscriptions: dict[Address, Subscription] = {}
        #: Addresses that were connected since the start, and how often such a one was connected again.
        self._were_connected: set[Address] = set()
        self._reconnect_count = 0
        #: From here on: made by start().
        self._hub_handle: HubHandle | None = None
        self._flow: FlowControl | None = None
        self._handling: Handlers | None = None
        self._roster: Redialer | None = None
        self._discovery: LookupdPoller | None = None
        self._watchdog: Watchdog | None = None
        #: Settled when the Reader has stopped.
        self._stopped: PendingReply | None = None
        #: What the last stop left unanswered.
        self._left = 0
        #: For the pulled form: greenlets that are inside the loop's body.
        self._pullers: set[Any] = set()

    def __repr__(self) -> str:
        return (
            f"<Reader {self._name} {self._state} connections={len(self._subscriptions)} "
            f"max_in_flight={self._max_in_flight}>"
        )

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect and consume, and return. Never switches. Next: :meth:`stop`, :meth:`wait`.

        A stopped Reader can be started again.

        :raises NotRunning: when it is running already
        """
        if self._state in ("running", "stopping"):
            raise NotRunning(f"this Reader is {self._state}")
        options = self.options
        hub_handle = self._hub_handle = handle_here()
        # What can fail comes first, so that a start that fails leaves nothing behind.
        discovery = self._make_discovery() if self._lookupds else None
        earlier = self._flow
        self._flow = FlowControl(options, self._make_backoff(), hub_handle, on_backoff=self._backoff_changed)
        if earlier is not None:
            self._flow.count_on(earlier)
        self._flow.max_in_flight = self._max_in_flight
        self._flow.paused = self._paused
        self._handling = Handlers(
            self._handler,
            self._name,
            self._concurrency(),
            in_threads=options.spawn == "thread",
            max_attempts=options.max_attempts,
            on_giving_up=self._on_giving_up,
            on_error=self._report,
            is_starved=lambda: self.is_starved,
        )
        self._state = "running"
        self._stopped = PendingReply()
        self._left = 0
        self._fatal = None
        self._were_connected.clear()
        self._watchdog = Watchdog(self._name)
        self._watchdog.start()
        at_fork.register(self)
        at_fork.register_busy(self, _busy)
        self._roster = Redialer(
            self._fixed,
            connect=self._connect,
            is_connected=self._subscriptions.__contains__,
            on_failure=self._report,
            on_hopeless=self._give_in,
            poll_interval=options.lookupd_poll_interval,
            max_redial_delay=options.max_redial_delay,
            surveyed=discovery is None,
        )
        self._roster.start()
        self._discovery = discovery
        if discovery is not None:
            discovery.start()

    def _make_backoff(self) -> Backoff:
        options = self.options
        strategy: Strategy
        if callable(options.backoff_strategy):
            strategy = sound(options.backoff_strategy, exponential(options.backoff_multiplier), _strategy_failed)
        elif options.backoff_strategy == "full_jitter":
            strategy = full_jitter(random.random, options.backoff_multiplier, options.max_backoff_duration)
        else:
            strategy = exponential(options.backoff_multiplier)
        return Backoff(strategy, options.max_backoff_duration, options.backoff_multiplier)

    def _make_discovery(self) -> LookupdPoller:
        # At first use: the HTTP client must not be loaded before an application has patched.
        from gnsq_like.discovery.lookupd_poller import make_poller

        return make_poller(self._lookupds, self.topic, self.options, self._found, self._report)

    def run(self, *, stop_timeout: float = 30.0) -> None:
        """Start, and block until stopped, by :meth:`stop` or by SIGTERM or SIGINT. May switch.

        The signals are handled only where this is called in the main thread. A second SIGINT, of somebody at a
        keyboard, ends the wait for handlers.

        :param stop_timeout: seconds for the running handlers, when a signal stops it
        :raises ConnectionFailed: when every nsqd there is refuses in a way that repeating cannot cure: AUTH, TLS,
            a name; its cause is nsqd's error, a TLSError or a NegotiationFailed
        """
        self.start()
        handlers: list[Any] = []
        if self._hub_handle is not None and self._hub_handle.hub.main_hub:
            handlers = [
                gevent.signal_handler(number, self._signalled, number, stop_timeout)
                for number in (signals.SIGTERM, signals.SIGINT)
            ]
        try:
            self.wait()
        finally:
            for handler in handlers:
                handler.cancel()
            self.stop(stop_timeout)
        if self._fatal is not None:
            raise self._fatal

    def _signalled(self, number: int, stop_timeout: float) -> None:
        self.stop(0.0 if self._state == "stopping" and number == signals.SIGINT else stop_timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the Reader has stopped; False after ``timeout`` seconds. May switch."""
        if self._hub_handle is None or self._stopped is None:
            return True
        return self._hub_handle.wait(self._stopped, timeout)

    def stop(self, timeout: float = 30.0) -> int:
        """Stop in good order; twice is fine. May switch.

        1. RDY 0 and CLS everywhere, so that nothing new comes. 2. Messages that no handler has begun are
        requeued at once, without backoff. 3. Handlers that run may answer until ``timeout``. 4. What is left
        is requeued, its handlers are killed, and the connections are closed.

        Called by a handler, inside ``for message in reader``, or from another OS thread, it only begins the
        stop; :meth:`wait` waits for its end. A caller who is interrupted stops waiting; the stop goes on. Called
        again while it goes on, it can only bring the end forward.

        :param timeout: seconds for the running handlers
        :returns: how many messages were still unanswered when the time was up
        """
        if self._hub_handle is None or self._handling is None:
            return 0
        current = gevent.getcurrent()
        if not self._hub_handle.here or self._handling.is_worker(current) or current in self._pullers:
            self._hub_handle.call(self._begin_to_stop, timeout)
            return 0
        self._begin_to_stop(timeout)
        self.wait()
        return self._left

    def _begin_to_stop(self, timeout: float) -> None:
        # In a greenlet of its own, which whoever called stop() may wait for, or not.
        deadline = time.monotonic() + timeout
        if self._state == "running":
            self._state = "stopping"
            self._deadline = deadline
            gevent.spawn(self._end)
        elif self._state == "stopping" and deadline < self._deadline:
            self._deadline = deadline
            if self._flow is not None and self._flow.on_drained is not None:
                self._flow.on_drained()  # to look at the time anew

    def _end(self) -> None:
        flow, handling, roster = self._flow, self._handling, self._roster
        assert flow is not None and handling is not None and roster is not None and self._stopped is not None
        try:
            flow.stop()
            for subscription in self._subscriptions.values():
                flow.close(subscription)
                subscription.connection.set_rdy(0)
            unbegun = handling.take_unbegun()
            handling.wake()
            closing = [gevent.spawn(self._unsubscribe, each, unbegun) for each in self._subscriptions.values()]
            if self._discovery is not None:
                self._discovery.stop()
                self._discovery = None
            roster.stop()
            gevent.joinall(closing)
            self._drain(flow)
            self._left = flow.in_flight
            if self._left:
                logger.warning("stopping with %d messages of %s unanswered", self._left, self._name)
            for subscription in list(flow.subscriptions):
                for message in list(subscription.in_flight):
                    if message.answer is None:
                        message.requeue(0, backoff=False)
            handling.kill()
            for subscription in list(self._subscriptions.values()):
                subscription.connection.close()
            self._hooks.join(1.0)
        finally:
            if self._watchdog is not None:
                self._watchdog.stop()
            self._subscriptions.clear()
            self._state = "stopped"
            self._stopped.settle()

    def _unsubscribe(self, subscription: Subscription, unbegun: list[Message]) -> None:
        """CLS, and then give back: before CLOSE_WAIT nsqd might deliver here again what it got back."""
        patience = max(_GOODBYE, self._deadline - time.monotonic())
        patience = min(patience, subscription.connection.options.connect_timeout)
        try:
            subscription.connection.close_subscription(patience)
        except NSQError as exc:
            logger.info("%s", exc)
        for message in unbegun:
            if message.subscription is subscription:
                message.requeue(0, backoff=False)

    def _drain(self, flow: FlowControl) -> None:
        """Wait until nothing is in flight or the time is up."""
        while flow.in_flight and (left := self._deadline - time.monotonic()) > 0:
            woken = PendingReply()
            flow.on_drained = woken.settle
            woken.wait(left)
        flow.on_drained = None

    def forked_child(self) -> None:
        """For ``forks``: this process is a child, where this Reader is stopped until started. Never switches."""
        if self._state not in ("running", "stopping"):
            return
        self._state = "stopped"
        assert self._flow is not None and self._handling is not None and self._roster is not None
        forget_here()
        self._flow.stop()
        if self._discovery is not None:
            self._discovery.inherited()
            self._discovery = None
        self._roster.inherited()
        self._handling.take_unbegun()
        self._handling = None
        # What was counted was the parent's.
        self._flow = None
        self._reconnect_count = 0
        if self._watchdog is not None:
            self._watchdog.stop()
        self._subscriptions.clear()
        self._hooks = HookRunner()
        self._stopped = None

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def error(self) -> NSQError | None:
        """Why it stopped by itself: every nsqd refuses in a way that repeating cannot cure. Else None."""
        return self._fatal

    # -- connections --------------------------------------------------------------------------------

    def _found(self, addresses: list[Address], complete: bool) -> None:
        if self._roster is not None:
            self._roster.found(addresses, complete)

    def _connect(self, address: Address) -> NSQError | None:
        """Connect and subscribe once; why it failed, or None. May switch."""
        assert self._flow is not None
        connection = Connection(
            address,
            self.options,
            on_messages=self._messages_came,
            on_error=lambda connection, error: self._report(connection.address, error),
            on_close=self._connection_ended,
            on_auth=lambda connection, authorized: self._hooks.call(self._on_auth, connection.address, authorized),
        )
        try:
            connection.connect()
            connection.subscribe(self.topic, self.channel)
        except NSQError as exc:
            connection.close()
            return exc
        except BaseException:
            connection.close()
            raise
        if not connection.alive:
            # nsqd's OK to SUB and its reason to hang up came in one piece.
            return connection.error or ConnectionLost(connection.address, "nsqd closed it after SUB")
        subscription = Subscription(
            connection,
            self.topic,
            self.channel,
            self._flow,
            self._flow.settings,
            adaptive=self.options.adaptive_rdy,
        )
        self._subscriptions[address] = subscription
        self._reconnect_count += address in self._were_connected
        self._were_connected.add(address)
        self._flow.add(subscription)
        self._hooks.call(self._on_connect, connection.address)
        logger.info("subscribed to %s at %s", self._name, address)
        return None

    def _connection_ended(self, connection: Connection, error: NSQError | None) -> None:
        # In the connection's greenlet, at its end.
        subscription = self._subscriptions.get(connection.target)
        if subscription is None or subscription.connection is not connection:
            return  # it never got as far as a subscription
        assert self._flow is not None and self._handling is not None and self._roster is not None
        del self._subscriptions[connection.target]
        self._handling.drop(subscription)
        self._flow.lose(subscription)
        self._hooks.call(self._on_disconnect, connection.address, error)
        if error is not None:
            logger.warning("%s", error)
        if self._roster.lost(connection.target) and self._discovery is not None:
            self._discovery.hurry()

    def _give_in(self, error: NSQError) -> None:
        """Every known nsqd refuses for good."""
        if self._subscriptions:
            return
        if self._were_connected and isinstance(error.__cause__, NsqdError) and error.__cause__.code == "E_AUTH_FAILED":
            # nsqd says the same of a secret that is wrong and of an auth server that is away; this one was good.
            return
        self._fatal = error
        self._begin_to_stop(0.0)

    def _report(self, address: str, error: NSQError) -> None:
        logger.warning("%s", error)
        self._hooks.call(self._on_error, address, error)

    # -- messages -----------------------------------------------------------------------------------

    def _messages_came(self, connection: Connection, raw_messages: list[RawMessage]) -> None:
        # In the connection's greenlet; must not switch.
        assert self._handling is not None
        messages = self._subscriptions[connection.target].receive(raw_messages)
        if self._state == "running":
            self._handling.put(messages)
        else:
            # RDY 0 is on its way, and these were on theirs.
            for message in messages:
                message.requeue(0, backoff=False)

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the Reader is stopped; starts it if need be. May switch.

        Each message must be answered: ``with message:`` does that.

        :raises NotRunning: when it has a handler
        """
        if self._handler is not None:
            raise NotRunning("a Reader with a handler cannot be iterated over")
        if self._state != "running":
            self.start()
        while self._state == "running" and self._handling is not None:
            message = self._handling.pull()
            if message is None:
                continue
            puller = gevent.getcurrent()
            self._pullers.add(puller)
            try:
                yield message
            finally:
                self._pullers.discard(puller)

    # -- steering -----------------------------------------------------------------------------------

    @property
    def max_in_flight(self) -> int:
        """Messages in flight at once, over all connections; may be changed at any time, from any thread."""
        return self._max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        make_options(ReaderOptions, {"max_in_flight": value})
        self._max_in_flight = value
        self._on_hub(self._apply)

    def pause(self) -> None:
        """Receive no further messages, until :meth:`resume`; those in flight go on. From any thread."""
        self._paused = True
        self._on_hub(self._apply)

    def resume(self) -> None:
        """End a :meth:`pause`. From any thread."""
        self._paused = False
        self._on_hub(self._apply)

    def _apply(self) -> None:
        if self._flow is not None and self._handling is not None:
            self._flow.max_in_flight = self._max_in_flight
            self._flow.paused = self._paused
            self._flow.plan_soon()
            self._handling.set_concurrency(self._concurrency())

    def _concurrency(self) -> int:
        return self.options.concurrency or max(1, self._max_in_flight)

    def _on_hub(self, call: Callable[[], object]) -> None:
        if self._hub_handle is None or self._state != "running":
            return
        if self._hub_handle.here:
            call()
        else:
            self._hub_handle.call(call)

    @property
    def is_starved(self) -> bool:
        """Whether some connection holds nearly all it may: more comes only when messages are answered."""
        charges = [subscription.charge for subscription in self._subscriptions.values()]
        return any(
            charge.in_flight > 0 and charge.in_time >= min(charge.rdy, max(1, int(_STARVED_SHARE * charge.rdy)))
            for charge in charges
        )

    def stats(self) -> dict[str, Any]:
        """Counts, in this process, since it was made; and what each connection holds now. From any thread."""
        flow = self._flow
        handling = self._handling
        roster = self._roster
        return {
            "state": self._state,
            "received": 0 if flow is None else flow.received_count,
            "finished": 0 if flow is None else flow.finished_count,
            "given_up": 0 if flow is None else flow.given_up_count,
            "requeued": 0 if flow is None else flow.requeued_count,
            "failed": 0 if flow is None else flow.failed_count,
            "in_flight": 0 if flow is None else flow.in_flight,
            "waiting": 0 if handling is None else handling.waiting,
            "busy": 0 if handling is None else handling.busy,
            "max_in_flight": self._max_in_flight,
            "backoff_level": 0 if flow is None else flow.backoff.level,
            "reconnects": self._reconnect_count,
            "known": [] if roster is None else sorted(map(str, roster.known)),
            "surveyed": roster is not None and roster.surveyed,
            "connections": {
                str(address): {
                    "rdy": subscription.connection.rdy,
                    "share": subscription.charge.rdy,
                    "in_flight": len(subscription.in_flight),
                }
                for address, subscription in list(self._subscriptions.items())
            },
        }

    def _backoff_changed(self, level: int, seconds: float) -> None:
        if level:
            logger.warning("backoff of %s: level %d, for %.1f s", self._name, level, seconds)
        else:
            logger.info("backoff of %s has ended", self._name)
        self._hooks.call(self._on_backoff, level, seconds)


def _strategy_failed(problem: str) -> None:
    logger.error("backoff_strategy %s; its place is taken by the exponential one", problem)


def _busy(reader: Reader) -> int:
    """How many handlers run."""
    return 0 if reader._handling is None else reader._handling.busy
