"""Readers that run until a tool is stopped, and messages that are handled in lists."""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
from gevent.event import Event

from gnsq_like import Message, Reader
from gnsq_like.cluster.rounds import Unreachable
from gnsq_like.errors import NSQError
from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.tools.sources import Source

logger = logging.getLogger(__name__)

#: Seconds for messages in flight when a tool stops, as for NSQ's own.
STOP_TIMEOUT = 30.0


class Consumption:
    """The Readers of a tool. They are started as they are added, and stopped together.

    :param stop: set to end the tool; also set here when the tool cannot go on, see :meth:`wait`
    :param needs_lookupd: whether it is an error if no nsqlookupd answers at the start; NSQ's own tools wait
    :param stop_timeout: seconds in which messages in flight may still be answered
    """

    def __init__(
        self, source: Source, stop: Event, *, needs_lookupd: bool = False, stop_timeout: float = STOP_TIMEOUT
    ) -> None:
        self._stop_timeout = stop_timeout
        self._source = source
        self._stop = stop
        self._expected = len(source.nsqd_tcp_addresses) + (len(source.lookupd_http_addresses) if needs_lookupd else 0)
        self._readers: list[Reader] = []
        self._gatherings: set[Gathering] = set()
        self._connected = False
        self._failed: dict[str, NSQError] = {}
        #: Why it ended by itself.
        self._error: BaseException | None = None

    def add(self, topic: str, channel: str, handler: Callable[[Message], bool | None], **options: object) -> Reader:
        """Start a Reader. Never switches."""
        reader = self._source.reader(
            topic,
            channel,
            handler,
            on_connect=self._succeeded,
            on_error=self._try_failed,
            # A message that was not handled must not be finished, however often it failed.
            **{"max_attempts": 0, **self._source.options, **options},
        )
        reader.start()
        if isinstance(handler, Gathering):
            self._gatherings.add(handler)
        self._readers.append(reader)
        gevent.spawn(self._watch, reader)
        return reader

    def _succeeded(self, address: str) -> None:
        self._connected = True

    def _try_failed(self, address: str, error: NSQError) -> None:
        self._failed[address] = error
        if self._expected and not self._connected and len(self._failed) >= self._expected:
            self.fail(Unreachable(self._failed))

    def _watch(self, reader: Reader) -> None:
        reader.wait()
        if reader.error is not None:
            self.fail(reader.error)

    def fail(self, error: BaseException) -> None:
        """End the tool with an error; the first one counts. Never switches."""
        if self._error is None:
            self._error = error
        self._stop.set()

    def wait(self) -> None:
        """Wait for ``stop``, and stop the Readers. May switch.

        :raises Unreachable: none of the nsqds could be reached at the start
        :raises NSQError: no nsqd takes the connection, or what :meth:`fail` was called with
        """
        try:
            self._stop.wait()
        finally:
            self.end()
        self.check()

    def check(self) -> None:
        """Raise the error with which it ended, if there is one; see :meth:`wait`."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Stop the Readers; messages in flight may be answered until a timeout. Twice is fine. May switch."""
        for reader in self._readers:
            reader.pause()
        stopping = [gevent.spawn(reader.stop, self._stop_timeout) for reader in self._readers]
        gevent.sleep(0)  # RDY 0 goes first, or nsqd would deliver at once what a Gathering gives back
        for gathering in self._gatherings:
            gathering.close()
        gevent.joinall([*stopping, *(gevent.spawn(each.join, self._stop_timeout) for each in self._gatherings)])


class Gathering:
    """Hands messages to a function as lists: those that arrived while it handled the previous list.

    An instance is a Reader's handler, for one Reader or several. The function answers the messages itself; if it
    raises, ``on_failure`` gets the exception, and its messages and all later ones are requeued.

    :param work: called with a list of messages; may switch
    :param on_failure: called with the exception
    """

    def __init__(self, work: Callable[[list[Message]], object], on_failure: Callable[[BaseException], object]) -> None:
        self._work = work
        self._on_failure = on_failure
        self._waiting: list[Message] = []
        self._came = Event()
        self._closed = False
        self._greenlet = gevent.spawn(self._run)

    def __call__(self, message: Message) -> None:
        """Never switches."""
        if self._closed:
            message.requeue(0, backoff=False)
            return
        message.enable_async()
        self._waiting.append(message)
        self._came.set()

    def close(self) -> None:
        """Requeue the waiting messages, and those that still arrive. Never switches."""
        self._closed = True
        self._came.set()
        give_back(self._waiting)
        self._waiting = []

    def join(self, timeout: float) -> None:
        """After :meth:`close`: wait for the list being handled. May switch."""
        self._greenlet.join(timeout)

    def _run(self) -> None:
        while not self._closed:
            self._came.wait()
            self._came.clear()
            messages, self._waiting = self._waiting, []
            if not messages:
                continue
            try:
                self._work(messages)
            except Exception as exc:
                self.close()
                give_back(messages)
                self._on_failure(exc)


def give_back(messages: list[Message]) -> None:
    """Requeue those that have no answer yet, without delay and backoff. Never switches."""
    for message in messages:
        if not message.has_responded:
            message.requeue(0, backoff=False)


def in_a_thread() -> ThreadPool:
    """One native thread, for blocking writes to a disk or pipe."""
    return ThreadPool(1)
