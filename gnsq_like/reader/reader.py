"""The public ``Reader``: its arguments, and its methods with the states in which they may be called. A ``Running`` does
the work.

Nothing happens in the constructor: no socket, no greenlet, no lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Unpack

import gevent

from gnsq_like.addresses import parse_nsqds
from gnsq_like.errors import InvalidOption, NotRunning, NSQError, check_seconds, reason_of
from gnsq_like.options import ReaderOptions, ReaderOptionsDict, make_options
from gnsq_like.reader.message import Message, make_decoder
from gnsq_like.reader.running import NOT_STARTED, Running
from gnsq_like.reader.setup import Handler, Setup, Topics, check_handler, require_handlers
from gnsq_like.reader.topics import ReaderCounts
from gnsq_like.runtime.dispatcher import HookRunner
from gnsq_like.runtime.signals import run_until_signal
from gnsq_like.runtime.user_code import check_callable
from gnsq_like.wire.names import encode_channel
from gnsq_like.wire.negotiated import Authorized

#: The number of arguments of each hook.
_HOOKS = {
    "on_connect": 1,
    "on_disconnect": 2,
    "on_error": 2,
    "on_auth": 2,
    "on_backoff": 2,
    "on_finish": 1,
    "on_requeue": 2,
    "on_failure": 2,
    "on_timeout": 1,
}


class Reader:
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
    :param on_giving_up: called with a message whose delivery ``max_attempts`` has failed, and ``message.failure``; at
        its next delivery if nothing answered that one. When it returns, the message is finished; when it raises, the
        message is requeued
    :param on_expired: called instead of the handler with a message older than ``max_age``, likewise
    :param options: see :class:`gnsq_like.options.ReaderOptions`; durations in seconds, sizes in bytes
    :raises InvalidName, InvalidAddress, InvalidOption: if an argument is invalid; a handler or hook that is ``async``,
        a generator function, or takes other arguments is

    Next: :meth:`start` and :meth:`stop`, or :meth:`run`, or a ``with`` block, or iteration.
    """

    # A misspelt attribute, such as max_inflight, must raise instead of changing nothing.
    __slots__ = ("__weakref__", "_counts", "_running", "_setup", "channel", "options", "topic")

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
        if "batch" in options:  # as Flask's and Django's @reader take it
            wanted = "a handler of lists is a Batch: Reader(topic, channel, Batch(handler, size=100))"
            raise InvalidOption("batch", dict(options)["batch"], wanted)
        self.options: ReaderOptions = make_options(ReaderOptions, options, _ARGUMENTS)
        topics = Topics(topic)
        #: The topic; several are joined by commas; the text of a pattern.
        self.topic: str = topics.text
        self.channel: str = channel
        check_handler(handler)
        make_decoder(self.options.decoder)  # checks it
        nsqds, lookupds = parse_nsqds(nsqd_tcp_addresses, lookupd_http_addresses)
        if topics.pattern is not None and nsqds:
            raise InvalidOption("nsqd_tcp_addresses", nsqds, "a pattern of topics needs lookupd_http_addresses")
        hooks = HookRunner(
            {**_HOOKS, "on_backoff": 3} if topics.are_several else _HOOKS,
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
        self._setup = Setup(topics, channel, self.options, handler, nsqds, lookupds, hooks, on_giving_up, on_expired)
        #: Over all starts of this Reader.
        self._counts = ReaderCounts()
        #: Of the last start; None before the first.
        self._running: Running | None = None

    def __repr__(self) -> str:
        connections = 0 if self._running is None else len(self._running.table)
        return f"<Reader {self._setup.name} {self._state} connections={connections} max_in_flight={self.max_in_flight}>"

    # -- settings that may be changed while it runs ---------------------------------------------------

    @property
    def handler(self) -> Handler:
        """The handler; may be replaced while it is not running, for instance by a function that calls it."""
        return self._setup.handler

    @handler.setter
    def handler(self, handler: Handler) -> None:
        check_handler(handler)
        self._setup.handler = handler

    @property
    def max_in_flight(self) -> int:
        """The limit of messages in flight on all connections; may be changed at any time, from any thread."""
        return self._setup.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        make_options(ReaderOptions, {"max_in_flight": value})
        self._setup.max_in_flight = value
        self._steer()

    @property
    def rate_limit(self) -> float | None:
        """Messages a second, or None for no limit; may be changed at any time, from any thread."""
        return self._setup.rate_limit

    @rate_limit.setter
    def rate_limit(self, value: float | None) -> None:
        make_options(ReaderOptions, {"rate_limit": value})
        self._setup.rate_limit = value
        self._steer()

    def pause(self) -> None:
        """Receive no new messages until :meth:`resume`; those in flight are still handled. From any thread."""
        self._setup.paused = True
        self._steer()

    def resume(self) -> None:
        """End a :meth:`pause`. From any thread."""
        self._setup.paused = False
        self._steer()

    def _steer(self) -> None:
        if self._running is not None:
            self._running.steer()

    # -- life ---------------------------------------------------------------------------------------

    @property
    def _state(self) -> str:
        return "new" if self._running is None else self._running.state

    def start(self) -> None:
        """Start connecting and consuming, and return. Never switches. Next: :meth:`stop`, :meth:`wait`.

        A stopped Reader can be started again.

        :raises NotRunning: if it is already running
        :raises NSQError: if no file descriptors are free for an event loop, or to load the HTTP client
        """
        if self._state in ("running", "stopping"):
            raise NotRunning(f"this Reader is {self._state} already")
        try:
            self._running = Running(self._setup, self._counts)
        except OSError as exc:
            raise NSQError(f"the Reader is not started: {reason_of(exc)}") from exc
        self._running.start()

    def run(self, *, stop_timeout: float = 30.0) -> None:
        """Start, and block until stopped by :meth:`stop`, SIGTERM or SIGINT. May switch.

        Signals are handled only in the main thread, and in another greenlet than its main one only where the program
        has no handlers of its own. Afterwards they are as before. A second SIGINT ends the wait for running handlers.

        :param stop_timeout: seconds for running handlers after a signal
        :raises ConnectionFailed: if all nsqds refuse in a way that a retry cannot cure (AUTH, TLS, a name); its cause
            is nsqd's error, a TLSError or a NegotiationFailed
        :raises InvalidOption: if it has no handler
        """
        require_handlers([self.handler])
        run_until_signal(self, stop_timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the Reader has stopped; False after ``timeout`` seconds. May switch."""
        check_seconds("timeout", timeout, or_none=True)
        return self._running is None or self._running.wait(timeout)

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
        self.begin_to_stop(timeout)
        running = self._running
        if running is None or not running.hub_handle.here or running.handlers.is_worker(gevent.getcurrent()):
            return 0
        running.wait(None)
        return running.left

    def begin_to_stop(self, timeout: float = 30.0) -> None:
        """Begin to stop, and return. From any thread. Never switches. Next: :meth:`wait`.

        :param timeout: seconds for running handlers; further calls can only shorten them
        """
        check_seconds("timeout", timeout)
        if self._running is not None:
            self._running.stop_soon(timeout)

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def error(self) -> NSQError | None:
        """The reason if it stopped by itself: all nsqds refused in a way that a retry cannot cure. Otherwise None."""
        return None if self._running is None else self._running.error

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

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message, or None if there is none within ``timeout`` seconds. From any thread. May switch, or block.

        For a Reader without a handler, which is running. Answer each message, from any thread. When its connection is
        lost, the Reader drops it, see :attr:`Message.is_lost`.

        :param timeout: 0 does not wait; None waits until the Reader is stopped
        :raises NotRunning: if it has a handler, does not run, or is stopped meanwhile
        :raises ConnectionFailed: as :meth:`run`
        """
        check_seconds("timeout", timeout, or_none=True)
        if self.handler is not None:
            raise NotRunning("get() is for a Reader without a handler")
        running = self._running
        message = None
        if running is not None and self._state == "running":
            message = running.get(timeout)
        if message is None and self._state != "running":
            raise self.error or NotRunning(f"this Reader is {self._state}: start() it first")
        return message

    # -- looking in ---------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counts since this Reader was made, in this process, and the state of each connection. From any thread.

        - ``state``: new, running, stopping or stopped; ``paused``, ``max_in_flight``, ``backoff_level`` (of several
          topics, the highest)
        - counts: ``received``; ``finished``, including ``given_up`` and ``expired``; ``requeued``; ``failed``, which
          count for backoff; ``lost``, left unanswered because the connection was lost or the time was up before a
          handler began: nsqd delivers these again
        - now: ``in_flight``, of which ``waiting`` have not been begun; ``busy``, the number of running handlers
        - discovery: ``known``, the addresses that were given or found; ``surveyed``, whether the nsqlookupds have
          answered yet; ``missing``, the topics that no nsqd has; ``reconnects``
        - ``connections``: for each address (with several topics, "address/topic") ``rdy``, the last value sent;
          ``share``, the most that RDY may become; ``in_flight``
        - ``topics``: for each topic its counts, ``in_flight``, ``backoff_level`` and the number of ``connections``
        """
        running = self._running
        by_topic: dict[str, dict[str, Any]] = {
            topic: {**vars(counts), "in_flight": 0, "backoff_level": 0, "connections": 0}
            for topic, counts in list(self._counts.by_topic.items())
        }
        if running is not None:
            running.count_topics(by_topic)
        return {
            "state": self._state,
            **vars(self._counts.total),
            "max_in_flight": self.max_in_flight,
            "paused": self._setup.paused,
            "reconnects": self._counts.reconnects,
            **(NOT_STARTED if running is None else running.stats()),
            "topics": by_topic,
        }

    @property
    def is_starved(self) -> bool:
        """Whether some connection has nearly its whole share in flight; more arrives only after answers."""
        return self._running is not None and self._running.flow.is_starved


def running_of(reader: Reader) -> Running | None:
    """For groups and the test kit: the last start of a Reader; None before the first."""
    return reader._running


class ReaderArguments(ReaderOptionsDict, total=False):
    """Addresses, hooks and options of a :class:`Reader`: ``def reading(**arguments: Unpack[ReaderArguments])``."""

    nsqd_tcp_addresses: str | Iterable[str]
    lookupd_http_addresses: str | Iterable[str]
    on_connect: Callable[[str], object] | None
    on_disconnect: Callable[[str, NSQError | None], object] | None
    on_error: Callable[[str, NSQError], object] | None
    on_auth: Callable[[str, Authorized], object] | None
    on_backoff: Callable[[int, float], object] | Callable[[int, float, str], object] | None
    on_finish: Callable[[Message], object] | None
    on_requeue: Callable[[Message, float], object] | None
    on_failure: Callable[[Message, BaseException], object] | None
    on_timeout: Callable[[Message], object] | None
    on_giving_up: Callable[[Message], object] | None
    on_expired: Callable[[Message], object] | None


#: Arguments of a Reader besides its options.
_ARGUMENTS = ("topic", "channel", "handler", *ReaderArguments.__annotations__)
