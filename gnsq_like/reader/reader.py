"""``Reader`` wires connections, discovery, handlers and flow control together.

``LookupdPoller`` finds nsqds, ``Redialer`` decides when each is dialled, ``Subscriptions`` is the table of connections,
each of them a ``Subscription`` with its messages, ``Handlers`` calls the handler and answers, ``FlowControl`` alone
decides RDY, ``Stop`` is the order of a stop. Messages do not pass through the Reader.

Nothing happens in the constructor: no socket, no greenlet, no lock.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, Unpack

import gevent

from gnsq_like.addresses import parse_addresses
from gnsq_like.discovery.redial import Redialer, Target
from gnsq_like.errors import InvalidOption, NotRunning, NsqdError, NSQError, check_seconds
from gnsq_like.http.url import check_addresses
from gnsq_like.options import ReaderOptions, ReaderOptionsDict, make_options, option_names
from gnsq_like.reader.decoder import make_decoder
from gnsq_like.reader.flow_control import FlowControl
from gnsq_like.reader.handlers import Handler, Handlers, check_handler
from gnsq_like.reader.hooks import ARGUMENTS, MessageHooks
from gnsq_like.reader.message import Message
from gnsq_like.reader.running import NOT_STARTED, Running
from gnsq_like.reader.steering import Steering
from gnsq_like.reader.stopping import Stop
from gnsq_like.reader.subscriptions import Subscriptions
from gnsq_like.reader.topic_flow import ReaderCounts
from gnsq_like.reader.topics import Topics
from gnsq_like.reader.until_signal import run_until_signal
from gnsq_like.runtime import owner
from gnsq_like.runtime.callables import check_callable
from gnsq_like.runtime.hook_runner import HookRunner
from gnsq_like.runtime.hub_calls import handle_here
from gnsq_like.runtime.known_attributes import KnownAttributes
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.watchdog import Watchdog
from gnsq_like.wire.names import encode_channel
from gnsq_like.wire.negotiated import Authorized

logger = logging.getLogger(__name__)

#: Seconds that the thread of a Reader gets to end after it, when the program ends.
_THREAD_ENDS = 0.5


class Reader(Steering, KnownAttributes):
    """Consumes a topic, or several, through a channel: calls a handler for each message, or is iterated over.

    The handler runs in a greenlet and may block; up to ``concurrency`` handlers run at once. When it returns, the
    message is finished; when it raises, the message is requeued. ``raise Requeue(delay=, backoff=)`` requeues without
    logging an error. Returning False requeues too and logs an error, because other clients use it for that. Without a
    handler, iterate: ``for message in reader: with message: ...``.

    :param topic: topic name; or several names; or a compiled pattern, which ``search`` finds in the names of topics:
        those that the nsqlookupds know, as they come and go
    :param channel: channel name
    :param handler: called with each :class:`Message`; or a :class:`Batch`, for lists of messages
    :param nsqd_tcp_addresses: one or several nsqds: "host:port", "[ipv6]:port" or "unix:/path"
    :param lookupd_http_addresses: one or several nsqlookupds, polled for nsqds with the topic: "host:port" or URL
    :param on_connect: hook, called with (address) when a connection has subscribed
    :param on_disconnect: hook, called with (address, error) when it has ended; error is None after a stop
    :param on_error: hook, called with (address, error) for errors after which the Reader continues: a failed try to
        connect, an nsqlookupd that does not answer, a FIN, REQ or TOUCH that nsqd refused
    :param on_auth: hook, called with (address, authorized) when nsqd accepted the ``auth_secret``; authorized has
        ``identity``, ``identity_url`` and ``permission_count``
    :param on_backoff: hook, called with (level, seconds) when backoff begins or changes, (0, 0.0) when it ends; with
        several topics, (level, seconds, topic)
    :param on_finish: hook, called with (message) when its FIN is on its way
    :param on_requeue: hook, called with (message, delay in seconds) when its REQ is on its way
    :param on_failure: hook, called with (message, exception) when its handler has failed
    :param on_timeout: hook, called with (message) when it was not answered within nsqd's msg_timeout
    :param on_giving_up: called instead of the handler with a message delivered more than ``max_attempts`` times; when
        it returns, the message is finished; when it raises, the message is requeued without backoff
    :param on_expired: called instead of the handler with a message older than ``max_age``, likewise
    :param options: see :class:`gnsq_like.options.ReaderOptions`; durations in seconds, sizes in bytes
    :raises InvalidName, InvalidAddress, InvalidOption: if an argument is invalid; a handler or hook that is ``async``,
        a generator function, or takes other arguments is

    Next: :meth:`start` and :meth:`stop`, or :meth:`run`, or a ``with`` block, or iteration.
    """

    def __init__(
        self,
        topic: str | Iterable[str] | re.Pattern[str],
        channel: str,
        handler: Handler = None,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        on_connect: Callable[[str], object] | None = None,
        on_disconnect: Callable[[str, NSQError | None], object] | None = None,
        on_error: Callable[[str, NSQError], object] | None = None,
        on_auth: Callable[[str, Authorized], object] | None = None,
        on_backoff: Callable[[int, float], object] | Callable[[int, float, str], object] | None = None,
        on_finish: Callable[[Message], object] | None = None,
        on_requeue: Callable[[Message, float], object] | None = None,
        on_failure: Callable[[Message, BaseException], object] | None = None,
        on_timeout: Callable[[Message], object] | None = None,
        on_giving_up: Callable[[Message], object] | None = None,
        on_expired: Callable[[Message], object] | None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> None:
        encode_channel(channel)
        super().__init__(make_options(ReaderOptions, options))
        self._topics = Topics(topic)
        #: The topic; several are joined by commas; the text of a pattern.
        self.topic: str = self._topics.text
        self.channel = channel
        self._name = f"{self.topic}/{channel}"
        self.handler = handler
        make_decoder(self.options.decoder)  # checks it
        self._fixed = parse_addresses(nsqd_tcp_addresses)
        self._lookupds = check_addresses(lookupd_http_addresses)
        if not self._fixed and not self._lookupds:
            raise InvalidOption("nsqd_tcp_addresses", (), "set nsqd_tcp_addresses, lookupd_http_addresses, or both")
        if self._topics.pattern is not None and self._fixed:
            raise InvalidOption("nsqd_tcp_addresses", self._fixed, "a pattern of topics needs lookupd_http_addresses")
        self._hooks = HookRunner(
            {**ARGUMENTS, "on_backoff": 3} if self._topics.are_several else ARGUMENTS,
            on_connect=on_connect,
            on_disconnect=on_disconnect,
            on_error=on_error,
            on_auth=on_auth,
            on_backoff=on_backoff,
            on_finish=on_finish,
            on_requeue=on_requeue,
            on_failure=on_failure,
            on_timeout=on_timeout,
        )
        for name, function in (("on_giving_up", on_giving_up), ("on_expired", on_expired)):
            if function is not None:
                check_callable(name, function, 1)
        self._on_giving_up = on_giving_up
        self._on_expired = on_expired
        #: See ``error``.
        self._fatal: NSQError | None = None
        self._subscriptions = Subscriptions(channel, self.options, self._hooks, self._report)
        #: Over all starts of this Reader.
        self._counts = ReaderCounts()
        self._seal(Reader, option_names(ReaderOptions))

    def __repr__(self) -> str:
        return (
            f"<Reader {self._name} {self._state} connections={len(self._subscriptions)} "
            f"max_in_flight={self._max_in_flight}>"
        )

    @property
    def handler(self) -> Handler:
        """The handler; may be replaced while it is not running, for instance by a function that calls it."""
        return self._handler

    @handler.setter
    def handler(self, handler: Handler) -> None:
        check_handler(handler)
        self._handler = handler

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start connecting and consuming, and return. Never switches. Next: :meth:`stop`, :meth:`wait`.

        A stopped Reader can be started again.

        :raises NotRunning: if it is already running
        """
        if self._state in ("running", "stopping"):
            raise NotRunning(f"this Reader is {self._state}")
        options = self.options
        hub_handle = handle_here()
        # Steps that can fail come first, so that a failed start leaves nothing behind.
        poller = None
        if self._lookupds:
            # Imported at first use: an application may have to patch before the HTTP client is loaded.
            from gnsq_like.discovery.topics import make_topics_poller

            poller = make_topics_poller(
                self._lookupds,
                self._topics.pattern or self._topics.names,
                options,
                self._found,
                self._report,
                on_gone=self._gone,
                connected=lambda: self._subscriptions.targets,
                is_lost=lambda target: redialer.is_lost(target),
            )
        hooks = MessageHooks(self._hooks)
        flow = FlowControl(options, hub_handle, self._counts, on_backoff=self._backoff_changed, overdue=hooks.overdue)
        flow.max_in_flight = self._max_in_flight
        flow.paused = self._paused
        flow.set_rate_limit(self._rate_limit)
        handlers = Handlers(
            self.handler,
            self._name,
            self._concurrency(),
            options,
            on_giving_up=self._on_giving_up,
            on_expired=self._on_expired,
            on_error=partial(self._hooks.call, "on_error"),
            is_starved=lambda: flow.is_starved,
        )
        for topic in self._topics.names:
            flow.follow(topic)
        redialer = Redialer(
            [Target(address, topic) for address in self._fixed for topic in self._topics.names],
            connect=self._subscriptions.connect,
            is_connected=self._subscriptions.__contains__,
            on_failure=self._report,
            on_hopeless=self._all_refused,
            max_redial_delay=options.max_redial_delay,
            surveyed=poller is None,
        )
        watchdog = Watchdog(self._name)
        self._running = Running(hub_handle, flow, handlers, hooks, redialer, watchdog, poller, PendingReply())
        self._state = "running"
        self._fatal = None
        self._subscriptions.begin(self._running)
        owner.register(
            self,
            Reader._forked_child,
            busy=_busy,
            begin_to_end=Reader._begin_to_stop_at_exit,
            wait=Reader._wait_at_exit,
        )
        watchdog.start()
        redialer.start()
        if poller is not None:
            poller.start()

    def _found(self, targets: list[Target], complete: bool, began: float) -> float | None:
        running = self._running
        if running is None or self._state != "running":
            return None
        if self._topics.pattern is not None:
            self._subscriptions.follow(targets, complete)
        return running.redialer.found(targets, complete, began)

    def _gone(self, targets: list[Target]) -> None:
        if self._running is not None and self._state == "running":
            self._running.redialer.forget(targets)
            self._subscriptions.release(targets)

    def run(self, *, stop_timeout: float = 30.0) -> None:
        """Start, and block until stopped by :meth:`stop`, SIGTERM or SIGINT. May switch.

        Signals are handled only in the main thread. A second SIGINT ends the wait for running handlers.

        :param stop_timeout: seconds for running handlers after a signal
        :raises ConnectionFailed: if all nsqds refuse in a way that a retry cannot cure (AUTH, TLS, a name); its cause
            is nsqd's error, a TLSError or a NegotiationFailed
        :raises InvalidOption: if it has no handler
        """
        self._check_runnable()
        run_until_signal(self, stop_timeout)

    def _check_runnable(self) -> None:
        if self.handler is None:
            raise InvalidOption("handler", None, "run() calls a handler; without one, iterate over the Reader")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the Reader has stopped; False after ``timeout`` seconds. May switch."""
        check_seconds("timeout", timeout, or_none=True)
        running = self._running
        if running is None or running.hub_handle.wait(running.stopped, timeout):
            return True
        if not running.hub_handle.lives:
            self._abandon(running)
        return running.stopped.done

    def stop(self, timeout: float = 30.0) -> int:
        """Stop in order; twice is fine. May switch.

        1. RDY 0 and CLS on all connections, so that no new messages arrive. 2. Messages whose handler has not started
        are requeued without delay and backoff. 3. Running handlers may answer until ``timeout``. 4. The remaining
        messages are requeued, their handlers are killed, and the connections are closed.

        Called by a handler, inside ``for message in reader``, or from another OS thread, this only begins the stop and
        returns 0; :meth:`wait` waits for its end. If the caller is interrupted, the stop continues. A second call can
        only shorten the timeout.

        :param timeout: seconds for running handlers
        :returns: the number of messages unanswered after that time
        """
        running = self._running
        self._stop_soon(timeout)
        if running is None or not running.hub_handle.here or self._is_handling(gevent.getcurrent()):
            return 0
        self.wait()
        return self._left

    def _stop_soon(self, timeout: float) -> None:
        """Begin to stop, from any thread. Never switches."""
        check_seconds("timeout", timeout)
        running = self._running
        if running is None:
            return
        if running.hub_handle.here:
            self._begin_to_stop(timeout)
        elif running.hub_handle.lives:
            running.hub_handle.call(self._begin_to_stop, timeout)
        else:
            self._abandon(running)

    def _abandon(self, running: Running) -> None:
        """Stop without the thread that started this, which has ended; twice is fine. Never switches."""
        with running.abandoning:
            if running.stopped.done:
                return
            self._state = "stopped"
            owner.keep((running, list(self._subscriptions)))
            for subscription in self._subscriptions:
                subscription.connection.abandon()
            running.watchdog.abandon()
            self._hooks.abandon()
            self._subscriptions.clear()
            running.stopped.settle()
        logger.warning("the thread that started %r has ended; nsqd delivers its messages again", self)

    def _is_handling(self, greenlet: object) -> bool:
        """Whether a handler, or the body of a loop over this Reader, runs in this greenlet."""
        return self._running is not None and self._running.handlers.is_worker(greenlet)

    @property
    def _left(self) -> int:
        """The messages unanswered at the end of the last stop."""
        return 0 if self._running is None or self._running.stop is None else self._running.stop.left

    def _on_stopped(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when it has stopped, in its hub; it must not switch. Never switches."""
        if self._running is not None:
            self._running.stopped.link(callback)

    def _begin_to_stop(self, timeout: float) -> None:
        running = self._running
        assert running is not None
        deadline = time.monotonic() + timeout
        if running.stop is not None:
            running.stop.hasten(deadline)
        elif self._state == "running":
            self._state = "stopping"
            running.stop = Stop(self._name, running.flow, running.handlers, deadline)
            running.stop.begin(list(self._subscriptions))
            # In a greenlet of its own, so that a killed caller of stop() does not interrupt it.
            gevent.spawn(self._end, running, running.stop)

    def _begin_to_stop_at_exit(self, timeout: float) -> bool:
        running = self._running
        if running is None or self._state == "stopped" or not running.hub_handle.lives:
            return False
        running.hub_handle.call(self._begin_to_stop, timeout)
        return True

    def _wait_at_exit(self, timeout: float) -> None:
        running = self._running
        if self.wait(timeout) and running is not None:
            running.hub_handle.join_thread(min(timeout, _THREAD_ENDS))

    def _end(self, running: Running, stop: Stop) -> None:
        try:
            stop.end_delivery()
            if running.poller is not None:
                running.poller.stop()
            running.redialer.stop()
            stop.finish()
            for subscription in self._subscriptions:
                subscription.connection.close()
            self._hooks.join(1.0)
        finally:
            running.watchdog.stop()
            self._subscriptions.clear()
            self._state = "stopped"
            running.stopped.settle()

    def _forked_child(self, loop_lives: bool) -> None:
        """For ``owner``: in the child, this Reader is stopped until started. Never switches."""
        if self._state not in ("running", "stopping"):
            return
        self._state = "stopped"
        running, self._running = self._running, None
        assert running is not None
        owner.keep((running, list(self._subscriptions)))
        if loop_lives:
            running.flow.stop()
            if running.poller is not None:
                running.poller.forked_child()
            running.redialer.forked_child()
            running.handlers.forked_child()
            running.watchdog.stop()
        self._counts = ReaderCounts()
        self._subscriptions.reconnect_count = 0
        self._subscriptions.clear()
        self._hooks.abandon()

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def error(self) -> NSQError | None:
        """Why it stopped by itself: all nsqds refused in a way that a retry cannot cure. Otherwise None."""
        return self._fatal

    # -- connections --------------------------------------------------------------------------------

    def _all_refused(self, error: NSQError) -> bool:
        """Every known nsqd refuses in a way that a retry cannot cure. Returns whether this Reader gives up."""
        if self._subscriptions:
            return False
        if (
            self._subscriptions.were_any
            and isinstance(error.__cause__, NsqdError)
            and error.__cause__.code == "E_AUTH_FAILED"
        ):
            # nsqd sends this for a wrong secret and for an unreachable auth server; this secret was accepted before.
            return False
        self._fatal = error
        self._begin_to_stop(0.0)
        return True

    def _report(self, address: str, error: NSQError) -> None:
        logger.warning("%s", error)
        self._hooks.call("on_error", address, error)

    # -- iteration ----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        """Messages as they arrive, until the Reader is stopped; starts it unless it is running. May switch.

        Each message must be answered; ``with message:`` does that. After ``break`` the Reader runs on: call
        :meth:`stop`, or iterate again.

        :raises NotRunning: if it has a handler, or runs in another thread
        :raises ConnectionFailed: as :meth:`run`
        """
        if self.handler is not None:
            raise NotRunning("a Reader with a handler cannot be iterated over")
        if self._state != "running":
            self.start()
        while self._state == "running" and self._running is not None:
            if not self._running.hub_handle.lives:
                raise NotRunning("the thread that started this Reader has ended: call stop() before you iterate again")
            if not self._running.hub_handle.here:
                raise NotRunning("this Reader runs in the thread that started it: iterate over it there")
            yield from self._running.handlers.loop()
        if self.error is not None:
            raise self.error

    # -- looking in ---------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counts since this Reader was made, in this process, and the state of each connection. From any thread."""
        running = self._running
        return {
            "state": self._state,
            **asdict(self._counts.total),
            "max_in_flight": self._max_in_flight,
            "paused": self._paused,
            "reconnects": self._subscriptions.reconnect_count,
            **(NOT_STARTED if running is None else running.stats()),
            "connections": self._subscriptions.stats(with_topic=self._topics.are_several),
            "topics": self._subscriptions.stats_by_topic(self._counts),
        }

    def _backoff_changed(self, topic: str, level: int, seconds: float) -> None:
        name = f"{topic}/{self.channel}"
        if level:
            logger.warning("backoff of %s: level %d, for %.1f s", name, level, seconds)
        else:
            logger.info("backoff of %s has ended", name)
        self._hooks.call("on_backoff", level, seconds, *([topic] if self._topics.are_several else []))


def _busy(reader: Reader) -> int:
    """The number of running handlers."""
    return 0 if reader._running is None else reader._running.handlers.busy
