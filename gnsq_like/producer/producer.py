"""The public ``Producer``, whose methods may be called from any thread, and the ways in which callers wait.

A call is checked and encoded, becomes a ``Publish``, and is passed to the thread of the connections, where ``pool``
chooses nsqds and retries, and ``destinations`` connects. Every wait has the same three parts: wait until the deadline,
and _GRACE longer if another thread must report the outcome; withdraw a publish that is not settled by then; and after
an interruption, give it up.

=================================  =============================================================================
Caller                             How it waits
=================================  =============================================================================
a greenlet beside the connections  ``Publish.wait_in``: in its hub; the pool's deadlines
any other thread                   ``CrossThreadWait`` (``hub_calls``): in its hub, or on a lock without one
somebody later, or nobody          ``PublishResult``, an AsyncResult for all of these
an asyncio task                    ``Producer.apublish``: on an Event of its loop
=================================  =============================================================================

Nothing happens in the constructor: no socket, no greenlet, no lock, no thread. After a fork, the child's Producer
starts afresh at its next publish.
"""

from __future__ import annotations

import logging
import pickle  # noqa: F401 - AsyncResult.set_exception imports it, which fails without file descriptors
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, overload

import gevent
from gevent import Greenlet, getcurrent, monkey
from gevent._hub_local import get_hub_if_exists
from gevent.event import AsyncResult
from gevent.hub import Hub

from gnsq_like.addresses import parse_nsqds
from gnsq_like.errors import InvalidOption, NotRunning, NotSent, NSQError, UsageError, check_seconds, reason_of
from gnsq_like.options import ProducerOptions, ProducerOptionsDict, make_options
from gnsq_like.options.keywords import UnencodedProducerOptionsDict
from gnsq_like.producer.pool import Pool
from gnsq_like.producer.publish import Encoder, Publish, PublishCounts
from gnsq_like.runtime import hub_thread, native, owner
from gnsq_like.runtime.dispatcher import HookRunner
from gnsq_like.runtime.hub_calls import (
    CrossThreadWait,
    HubHandle,
    InnerGreenlet,
    call_here,
    handle_here,
    is_main_thread,
)
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.wire.negotiated import Authorized

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: The type of bodies: bytes, or values that the encoder takes.
    Body = TypeVar("Body", default=bytes, contravariant=True)
else:
    from typing import TypeVar

    Body = TypeVar("Body", contravariant=True)

logger = logging.getLogger(__name__)

#: Seconds that closing waits for pending publishes, if the caller does not say.
_CLOSE_TIMEOUT = 5.0
#: Seconds that closing takes at most after waiting for pending publishes: hooks get one.
_CLOSE_GRACE = 2.0
#: Seconds after a publish's deadline in which the thread of the connections may report its outcome to another. They
#: are waited for separately: when the whole process has stood still until then, that thread gets them, too.
_GRACE = 0.1


class _Arguments(UnencodedProducerOptionsDict, total=False):
    """Of a Producer, besides nsqds and encoder."""

    lookupd_http_addresses: str | Iterable[str]
    on_connect: Callable[[str], object] | None
    on_disconnect: Callable[[str, NSQError | None], object] | None
    on_error: Callable[[str, NSQError], object] | None
    on_auth: Callable[[str, Authorized], object] | None


if TYPE_CHECKING:

    class _Result(AsyncResult[None]):  # generic in types-gevent, not when the program runs
        pass
else:
    _Result = AsyncResult


class PublishResult(_Result):
    """The result of ``publish_async``: gevent's AsyncResult, which any thread may wait for."""

    if TYPE_CHECKING:  # gevent has no types
        #: Why it failed; None until then.
        exception: BaseException | None

        def ready(self) -> bool: ...
        def successful(self) -> bool: ...

    def __init__(self, publish: Publish) -> None:
        super().__init__()
        self._publish = publish
        self._there = publish.owner.hub_handle
        publish.link(self._settled if self._there.here else call_here(self._settled))

    def _settled(self) -> None:
        # In the thread that made this, where gevent.wait() expects it, or in a waiting thread.
        if self.ready():
            return
        if self._publish.error is None:
            self.set(None)
        else:
            self.set_exception(self._publish.error)

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        """Return None after nsqd's OK; raises like ``publish``, and gevent.Timeout after ``timeout`` seconds."""
        if block and not self.ready() and not self._there.here:
            self._wait_elsewhere(timeout)
            block, timeout = False, None
        super().get(block, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until ready, or for ``timeout`` seconds. Next: ``ready()``, ``exception``."""
        if not self.ready() and not self._there.here:
            self._wait_elsewhere(timeout)
        else:
            super().wait(timeout)

    def add_done_callback(self, callback: Callable[[Exception | None], object]) -> None:
        """Call ``callback(error)`` once the outcome is known; the error is None after nsqd's OK. From any thread.

        It is called in the thread of the connections, and must not block.
        """
        publish = self._publish

        def done() -> None:
            callback(publish.error)

        if self._there.here:
            publish.link(done)
        else:
            self._there.call(publish.link, done)

    def _wait_elsewhere(self, timeout: float | None) -> None:
        publish, there = self._publish, self._there
        limit = publish.deadline - time.monotonic()
        if timeout is not None and timeout < limit + _GRACE:
            if not there.wait(publish, timeout):
                return
        elif not (there.wait(publish, limit) or there.wait(publish, _GRACE)):
            publish.withdraw()
        self._settled()


def _check_asyncio(there: HubHandle) -> None:
    """For ``apublish``. Never switches.

    :raises UsageError: in a greenlet of a patched process: asyncio has one loop in a thread, so that others fail
    :raises InvalidOption: if the connections are in the thread of the event loop, which does not run their hub
    """
    if monkey.is_module_patched("threading") and isinstance(getcurrent(), Greenlet):
        raise UsageError(
            "apublish() was called in a greenlet of a monkey-patched process, such as a gevent worker of gunicorn, "
            "where a second event loop beside this one fails; call publish() in a plain function: other greenlets run "
            "while it waits"
        )
    if there.here and not monkey.is_module_patched("select"):
        raise InvalidOption(
            "own_thread",
            False,
            "apublish() needs the connections in another thread, because the event loop keeps this one",
        )


def may_wait_here() -> bool:
    """Whether the current greenlet is neither a hub nor an InnerGreenlet. Never switches.

    Python calls a signal handler in whatever greenlet is running, also in these. A handler that waited in the hub
    would keep the answer it waits for from being read.

    :raises NotRunning: while the interpreter is finalized, for instance in a ``__del__``
    """
    try:
        current = getcurrent()
    except RuntimeError as exc:
        raise NotRunning("the interpreter is exiting") from exc
    return not isinstance(current, (Hub, InnerGreenlet))


class Producer(Generic[Body]):
    """Publishes messages to one or several nsqds; may be shared between greenlets and threads.

    Nothing happens before the first publish. Publishes go to the nsqds in turn; one that cannot be reached is skipped
    and tried again later. :meth:`publish` returns after nsqd's OK.

    :param nsqd_tcp_addresses: one or several nsqds: "host:port", "[ipv6]:port" or "unix:/path"
    :param lookupd_http_addresses: one or several nsqlookupds, polled for further nsqds: "host:port" or URL;
        ``discovery_filter`` chooses among these
    :param on_connect: hook, called with (address) when a connection is open
    :param on_disconnect: hook, called with (address, error) when it has ended; error is None after a close
    :param on_error: hook, called with (address, error) for errors after which the Producer continues: a failed try to
        connect, an nsqlookupd that does not answer
    :param on_auth: hook, called with (address, authorized) when nsqd accepted the ``auth_secret``; authorized has
        ``identity``, ``identity_url`` and ``permission_count``
    :param options: see :class:`gnsq_like.options.ProducerOptions`; durations in seconds, sizes in bytes
    :raises InvalidAddress, InvalidOption: if an argument is invalid

    Hooks run in a greenlet of the thread that has the connections (see the option ``own_thread``).

    For type checkers, a Producer is generic in what it publishes: ``Producer[bytes]``, or with an encoder what that
    takes, any value for ``"json"`` and ``"msgpack"``.

    Next: :meth:`publish`, :meth:`publish_async` or :meth:`multi_publish`; at the end :meth:`close`, or a ``with``
    block.
    """

    # A misspelt attribute must raise instead of changing nothing.
    __slots__ = (
        "__weakref__",
        "_addresses",
        "_closed",
        "_counts",
        "_encoder",
        "_hooks",
        "_lookupds",
        "_pool",
        "options",
    )

    @overload
    def __init__(
        self: Producer[bytes | bytearray | memoryview],
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        encoder: None = None,
        **arguments: Unpack[_Arguments],
    ) -> None: ...
    @overload
    def __init__(
        self: Producer[Any],
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        encoder: Literal["json", "msgpack"],
        **arguments: Unpack[_Arguments],
    ) -> None: ...
    @overload
    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        encoder: Callable[[Body], bytes],
        **arguments: Unpack[_Arguments],
    ) -> None: ...
    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        on_connect: Callable[[str], object] | None = None,
        on_disconnect: Callable[[str, NSQError | None], object] | None = None,
        on_error: Callable[[str, NSQError], object] | None = None,
        on_auth: Callable[[str, Authorized], object] | None = None,
        **options: Unpack[ProducerOptionsDict],
    ) -> None:
        self.options: ProducerOptions = make_options(
            ProducerOptions, options, ("nsqd_tcp_addresses", *_Arguments.__annotations__)
        )
        self._addresses, self._lookupds = parse_nsqds(nsqd_tcp_addresses, lookupd_http_addresses)
        if self.options.replicas > len(self._addresses) and not self._lookupds:
            raise InvalidOption(
                "replicas", self.options.replicas, f"it is above the number of nsqds, {len(self._addresses)}"
            )
        self._hooks = HookRunner(on_connect=on_connect, on_disconnect=on_disconnect, on_error=on_error, on_auth=on_auth)
        self._encoder = Encoder(self.options)
        self._closed = False
        #: Over all starts of this Producer.
        self._counts = PublishCounts()
        self._pool: Pool | None = None

    # -- publishing ---------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        body: Body,
        *,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish one message and wait for nsqd's OK. From any thread. May switch.

        :param topic: created by nsqd if it does not exist
        :param body: bytes, not empty, at most ``max_msg_bytes``; with an ``encoder``, any value it accepts
        :param defer: seconds until the message is delivered (DPUB, docs/internals 1.11); nsqd's limit is an hour
        :param timeout: seconds in total: connecting, room, writing, nsqd's answer; None for the option ``timeout``
        :raises InvalidName, InvalidBody, InvalidOption: before anything is sent
        :raises NotRunning: after :meth:`close`
        :raises NotSent: no nsqd could be reached or had room in time; a retry cannot make a duplicate
        :raises PublishRefused: nsqd refused it; has nsqd's error
        :raises OutcomeUnknown: sent, but not confirmed: nsqd may or may not have it
        """
        now = time.monotonic()
        pool, publish = self._make(topic, body, defer, now, timeout)
        self._wait_for(pool, publish, now)

    def publish_async(
        self,
        topic: str,
        body: Body,
        *,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> PublishResult:
        """Publish one message without waiting for nsqd's answer; parameters as for :meth:`publish`. From any thread.

        Waits, and may switch, only while ``max_pending_count`` publishes are already waiting for a connection. For
        signal handlers and callbacks of the hub, too: there it does not wait.

        :returns: a gevent AsyncResult: ``get()`` returns None after nsqd's OK, or raises like :meth:`publish`
        :raises InvalidName, InvalidBody, InvalidOption, NotRunning: immediately
        """
        now = time.monotonic()
        pool, publish = self._make(topic, body, defer, now, timeout)
        hub_handle, result = pool.hub_handle, PublishResult(publish)
        here = hub_handle.here
        may_begin = here and not pool.beginning and may_wait_here()
        limit = self.options.max_pending_count
        is_full = len(pool.queue) + hub_handle.backlog >= limit
        if may_begin:
            pool.begin(publish, now)
        elif is_full and here:
            hub_handle.call(publish.settle, NotSent(f"no room, and it may not wait here: {pool.why()}"))
            return result
        else:
            hub_handle.call(pool.begin, publish, now)
        if is_full:  # in the queue with the others; it keeps its caller until it has left it
            out = PendingReply()
            hub_handle.call(pool.when, lambda: publish.done or publish.is_sent or len(pool.queue) < limit, out)
            with ExitStack() as unless_it_returns:
                unless_it_returns.callback(publish.give_up)
                hub_handle.wait(out, publish.deadline - now)
                unless_it_returns.pop_all()
        return result

    async def apublish(
        self,
        topic: str,
        body: Body,
        *,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish one message from an asyncio task, and wait for nsqd's OK without blocking its event loop.

        Parameters and errors are those of :meth:`publish`. The first publish starts the thread of the connections,
        which blocks for an instant. If the task is cancelled while it waits, a publish that is not sent yet is not
        sent; of one that was sent the outcome is unknown.

        :raises InvalidOption: if the connections run in the event loop's own thread (``own_thread=False``)
        :raises UsageError: if the event loop runs in a spawned greenlet of a monkey-patched process: asyncio allows one
            loop in a thread, so that concurrent ones fail
        """
        import asyncio  # programs without it need not load it

        now = time.monotonic()
        pool, publish = self._make(topic, body, defer, now, timeout)
        _check_asyncio(pool.hub_handle)
        loop, settled = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody is waiting
                loop.call_soon_threadsafe(settled.set)

        publish.link(wake)
        pool.hub_handle.call(pool.begin, publish, now)
        try:
            for limit in (publish.deadline - now, _GRACE):
                with suppress(TimeoutError):
                    await asyncio.wait_for(settled.wait(), limit)
            publish.withdraw()
        finally:
            if not publish.done:
                publish.give_up()
        if publish.error is not None:
            raise publish.error.with_traceback(None)

    def multi_publish(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        atomic: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Publish several messages with as few MPUBs as ``max_body_bytes`` allows. From any thread. May switch.

        nsqd accepts an MPUB whole or not at all. If one fails, those before it are published, and none after it.

        :param bodies: any iterable of bodies, read lazily; may be empty
        :param atomic: raise InvalidBody if the bodies do not fit into one MPUB
        :param timeout: seconds for each MPUB; None for the option ``timeout``
        :raises: as :meth:`publish`
        """
        for chunk in self._encoder.chunks(bodies, atomic):
            now = time.monotonic()
            command = self._encoder.mpub(topic, chunk)
            deadline = now + self._seconds(timeout)
            pool = self._started()
            self._wait_for(pool, Publish(pool, command, deadline, len(chunk)), now)

    def check(self, topic: str, body: Body, *, defer: float | None = None) -> bytes:
        """Make the checks of :meth:`publish` without publishing. Never switches.

        For a message that is published later, for instance after a transaction, and should be valid now.

        :returns: the encoded body
        :raises InvalidName, InvalidBody, InvalidOption: as :meth:`publish`
        """
        encoder = self._encoder
        encoded = encoder.body(body)
        if defer is None:
            encoder.head(topic)
        else:
            encoder.dpub(topic, defer, encoded)
        return encoded

    def _make(
        self, topic: str, body: Any, defer: float | None, now: float, timeout: float | None
    ) -> tuple[Pool, Publish]:
        """Check and encode; every local error is raised here."""
        deadline = now + (self.options.timeout if timeout is None else self._seconds(timeout))
        if defer is None:
            command = self._encoder.pub(topic, body)
        else:
            command = self._encoder.dpub(topic, defer, self._encoder.body(body))
        pool = self._pool
        if pool is None or not pool.hub_handle.lives:  # as _started() does, but a call costs time here
            pool = self._started()
        return pool, Publish(pool, command, deadline)

    def _wait_for(self, pool: Pool, publish: Publish, now: float) -> None:
        """Send a publish, and wait until it is settled. From any thread; may switch, or block.

        :param now: monotonic time
        :raises PublishError: if it is not confirmed
        """
        hub_handle = pool.hub_handle
        here = native.thread_id() == hub_handle.thread
        if (here and pool.beginning) or (get_hub_if_exists() is not None and not may_wait_here()):
            raise NotSent(
                "publish() cannot wait in the hub or in a signal handler that interrupts it; "
                "use publish_async() there, or gevent.signal_handler()"
            )
        try:
            if not here:
                wait = CrossThreadWait(publish)
                hub_handle.call(pool.begin, publish, now)
                if not wait.wait(publish.deadline - now) and not wait.wait(_GRACE):
                    publish.withdraw()
            else:
                pool.begin(publish, now)
                if publish.done:
                    gevent.sleep(0)  # it failed; a caller that tries again in a loop must not keep the hub from running
                else:
                    publish.wait_in(hub_handle.hub)
        finally:
            if not publish.done:  # the wait was interrupted
                publish.give_up()
        if publish.error is not None:
            # A batch or a lost connection settles many publishes with the same error; each needs its own traceback.
            raise publish.error.with_traceback(None)

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.options.timeout
        check_seconds("timeout", timeout, above=0)
        return timeout

    # -- life ---------------------------------------------------------------------------------------

    def _started(self) -> Pool:
        """The pool; made by the first call in this process. May block briefly."""
        pool = self._pool
        if pool is not None and pool.hub_handle.lives:
            return pool
        if self._closed:
            raise NotRunning("the Producer is closed")
        if owner.starting._is_owned():
            raise NotSent("a signal handler cannot publish while the code that it interrupted starts the Producer")
        moved = False
        with owner.starting:
            pool = self._pool
            if pool is None or not pool.hub_handle.lives:
                made = self._make_pool()
                if pool is not None:
                    self._let_go(pool, False)
                    moved = True
                self._pool = pool = made
                owner.register(self, Producer._forked, thread=pool.hub_handle.thread, at_last=Producer._flush)
        if moved:  # not within the lock: what handles the log may publish
            logger.warning("the thread of the connections of %r has ended; they are opened anew", self)
        return pool

    def _make_pool(self) -> Pool:
        """A pool whose hub is chosen by this thread, that of the first publish; see the option ``own_thread``.

        :raises NotSent: if it cannot be made, mostly because there are no file descriptors
        """
        own_thread = self.options.own_thread
        try:
            if own_thread is None:
                own_thread = not (monkey.is_module_patched("threading") and is_main_thread())
            hub_handle = hub_thread.background() if own_thread else handle_here()
            return Pool(self._addresses, self._lookupds, self.options, self._hooks, hub_handle, self._counts)
        except NotRunning:
            raise
        except (NSQError, RuntimeError, OSError, ImportError) as exc:
            raise NotSent(f"its connections cannot be started: {reason_of(exc)}") from exc

    def _let_go(self, pool: Pool, loop_lives: bool) -> None:
        """Drop the connections in a forked child, or after the end of their thread. Never switches.

        :param loop_lives: see ``owner``
        """
        owner.keep(pool)
        self._hooks.abandon()
        pool.let_go(loop_lives)

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> bool:
        """Refuse new publishes, wait for pending ones, and close; twice is fine. From any thread. May switch.

        :param timeout: seconds to wait for pending publishes
        :returns: whether all of them were answered
        """
        check_seconds("timeout", timeout)
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is None:
            return True
        if not pool.hub_handle.lives:
            self._let_go(pool, False)
            return not pool.pending_count
        try:
            return bool(pool.hub_handle.run(pool.close, timeout, timeout=timeout + _CLOSE_GRACE))
        except (TimeoutError, NotRunning):
            logger.warning("%r: not closed yet, because the thread of its connections does not respond", self)
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forked(self, loop_lives: bool) -> None:
        """For ``owner``: in the child, start afresh at the next publish. Never switches."""
        pool, self._pool = self._pool, None
        self._counts = PublishCounts()
        if pool is not None:
            self._let_go(pool, loop_lives)

    def _flush(self, timeout: float) -> None:
        """At the interpreter's exit: wait for pending publishes; those that are left are lost, or may be."""
        pool = self._pool
        if pool is None or not pool.hub_handle.lives:
            return
        if timeout > 0:
            with suppress(TimeoutError, NSQError):
                pool.hub_handle.run(pool.drain, timeout, timeout=timeout)
        if left := pool.pending_count:
            text = "%r: at the program's end, %d publishes are not confirmed; close() waits longer. %s"
            logger.warning(text, self, left, pool.why())

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)  # not there if an argument was invalid
        # While the interpreter is finalized, names of modules are None.
        if pool is None or not owner or owner.is_exiting is not False or not pool.hub_handle.lives:
            return
        warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, source=self, stacklevel=2)
        pool.hub_handle.call(gevent.spawn, pool.close, _CLOSE_TIMEOUT)

    # -- inspection ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        names = ", ".join([*map(str, self._addresses), *self._lookupds])
        return f"<Producer {names}{' closed' if self._closed else ''}>"

    def stats(self) -> dict[str, Any]:
        """Counts of messages since the first publish, kept after close(), and the connections. From any thread."""
        pool = self._pool
        return {
            "state": "closed" if self._closed else "new" if pool is None else "running",
            **asdict(self._counts),
            "waiting": 0 if pool is None else len(pool.queue),
            "away": None if pool is None else pool.away,
            "connections": {}
            if pool is None
            else {destination.name: destination.stats() for destination in list(pool.discovery.destinations)},
        }
