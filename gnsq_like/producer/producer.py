"""The public ``Producer``: what a caller may call, from any thread.

Here a call is checked and encoded, becomes a ``Publish``, gets to the thread of the connections, and is
waited for. Everything else is elsewhere: ``pool`` chooses nsqds and tries again, ``target`` connects,
``batching`` and ``replicas`` stand between the two, ``home`` knows threads.

Nothing happens in the constructor: no socket, no greenlet, no lock, no thread. After a fork the child's
Producer has nothing of the parent's, and begins anew at its next publish.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from time import monotonic
from types import TracebackType
from typing import Any, Self

from gevent import get_hub, monkey
from gevent.event import AsyncResult

from gnsq_like.addresses import parse_addresses
from gnsq_like.errors import InvalidOption, NotRunning, NotSent, NSQError, OutcomeUnknown
from gnsq_like.http.url import check_addresses
from gnsq_like.options import ProducerOptions, make_options
from gnsq_like.producer.batching import Batching, Member
from gnsq_like.producer.encoder import Encoder
from gnsq_like.producer.outcomes import PublishCounts
from gnsq_like.producer.pool import Pool
from gnsq_like.producer.publish import Publish
from gnsq_like.producer.replicas import Replicas
from gnsq_like.runtime import at_fork, hub_thread
from gnsq_like.runtime.hook_runner import HookRunner
from gnsq_like.runtime.hub_calls import CrossThreadWait, HubHandle, allocate_lock, call_here, handle_here, thread_id
from gnsq_like.wire.negotiated import Authorized

#: Seconds beyond a publish's deadline that another thread waits for word of it.
_GRACE = 2.0
#: Seconds that all Producers together may use at the interpreter's exit.
_EXIT_TIMEOUT = 1.0

_getpid = os.getpid

#: Held while a Producer starts, so that two threads do not start it twice; nothing inside may switch.
_starting: Any = allocate_lock()


def _choose_hub(own_thread: bool | None) -> HubHandle:
    """The hub for a Producer whose first call comes from this thread; see the option ``own_thread``."""
    if own_thread is None:
        own_thread = not (monkey.is_module_patched("threading") and get_hub().main_hub)
    return hub_thread.background() if own_thread else handle_here()


class PublishResult(AsyncResult):
    """What ``publish_async`` gives: gevent's AsyncResult, which may also be waited for in any thread."""

    def __init__(self, publish: Publish, hub_handle: HubHandle) -> None:
        super().__init__()
        self._publish = publish
        self._hub_handle = hub_handle
        if hub_handle.here:
            publish.link(self._settled)
        else:
            publish.link(call_here(self._settled))

    def _settled(self) -> None:
        # In the thread that made this, where gevent.wait and the like look for it; or in one that waits for it.
        if self.ready():
            return
        if self._publish.error is None:
            self.set(None)
        else:
            self.set_exception(self._publish.error)

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        """None on nsqd's OK, or raises what ``publish`` raises; gevent.Timeout after ``timeout`` seconds."""
        if block and not self.ready() and not self._hub_handle.here:
            self._wait_elsewhere(timeout)
            block, timeout = False, None
        super().get(block, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is ready, for ``timeout`` seconds at most; see ``ready()`` and ``exception``."""
        if not self.ready() and not self._hub_handle.here:
            self._wait_elsewhere(timeout)
        else:
            super().wait(timeout)

    def _wait_elsewhere(self, timeout: float | None) -> None:
        if self._hub_handle.wait(self._publish, timeout):
            self._settled()


class _Running:
    """A Producer at work: what the first publish makes, and a fork or close ends."""

    __slots__ = ("batching", "hub_handle", "pid", "pool", "submit", "thread")

    def __init__(self, hub_handle: HubHandle, pool: Pool, encoder: Encoder) -> None:
        options = pool.options
        self.hub_handle = hub_handle
        self.thread = hub_handle.thread
        self.pid = _getpid()
        self.pool = pool
        self.submit = pool.submit
        if options.replicas > 1:
            self.submit = Replicas(pool, options.replicas, options.quorum).submit
        self.batching = Batching(pool, encoder, self.submit) if options.batching else None

    def begin(self, publish: Publish, now: float) -> None:
        """Send it on its way. In the home's thread; never switches."""
        if publish.done:
            return
        if type(publish) is Member:
            self.batching.add(publish)  # type: ignore[union-attr]
        else:
            self.pool.deadlines.add(publish)
            self.submit(publish, now)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is pending; whether that came about. In the home's thread; may switch."""
        if self.batching is not None:
            self.batching.flush()
        return not self.pool.pending_count or self.pool.drained().wait(timeout)

    def end(self, timeout: float) -> bool:
        """Drain and close. In the home's thread; may switch."""
        try:
            return self.drain(timeout)
        finally:
            self.pool.close()


class Producer:
    """Publishes to one nsqd or to several; shared freely between greenlets and threads.

    Nothing happens before the first publish. Publishes go to the nsqds in turn; one that is away is
    passed over and tried again later. :meth:`publish` returns when nsqd has said OK.

    :param nsqd_tcp_addresses: "host:port", "[ipv6]:port" or "unix:/path", or several
    :param lookupd_http_addresses: nsqlookupds whose nsqds are published to: "host:port" or URLs;
        ``discovery_filter`` chooses among them
    :param on_connect: hook, called with (address) when a connection stands
    :param on_disconnect: hook, called with (address, error) when it is gone; error is None after a close
    :param on_error: hook, called with (address, error) for what went wrong and ends nothing: a failed try
        to connect, a nsqlookupd without an answer
    :param on_auth: hook, called with (address, authorized) when nsqd took the ``auth_secret``; authorized has
        ``identity``, ``identity_url`` and ``permission_count``
    :param options: see :class:`gnsq_like.options.ProducerOptions`; durations in seconds, sizes in bytes
    :raises InvalidAddress, InvalidOption: for what is wrong

    Hooks run in a greenlet of the thread where the connections live (see the option ``own_thread``).
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        on_connect: Callable[[str], object] | None = None,
        on_disconnect: Callable[[str, NSQError | None], object] | None = None,
        on_error: Callable[[str, NSQError], object] | None = None,
        on_auth: Callable[[str, Authorized], object] | None = None,
        **options: Any,
    ) -> None:
        self.options = make_options(ProducerOptions, options)
        self._addresses = parse_addresses(nsqd_tcp_addresses)
        self._lookupds = check_addresses(lookupd_http_addresses)
        if not self._addresses and not self._lookupds:
            raise InvalidOption("nsqd_tcp_addresses", (), "give nsqd_tcp_addresses, lookupd_http_addresses, or both")
        if self.options.replicas > len(self._addresses) and not self._lookupds:
            raise InvalidOption(
                "replicas", self.options.replicas, f"there are only {len(self._addresses)} nsqds to publish to"
            )
        self._hooks = HookRunner(on_connect=on_connect, on_disconnect=on_disconnect, on_error=on_error, on_auth=on_auth)
        self._encoder = Encoder(self.options)
        #: Whether a publish without defer joins a batch.
        self._batches = self.options.batching
        self._timeout = self.options.timeout
        self._closed = False
        self._running: _Running | None = None
        #: The one of ``_running``; kept after close(), for its counts.
        self._pool: Pool | None = None

    # -- publishing ---------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        body: Any,
        *,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish one message and wait for nsqd's OK. From any thread. May switch.

        :param topic: created by nsqd if it does not exist
        :param body: bytes, not empty, at most ``max_msg_bytes``; with ``encoder`` whatever that takes
        :param defer: seconds until the message is delivered (DPUB, docs/internals 1.11); nsqd takes up to an hour
        :param timeout: seconds in all; the option of that name if not given
        :raises InvalidName, InvalidBody: before anything is sent
        :raises NotRunning: after :meth:`close`
        :raises NotSent: no nsqd could be reached, or none had room, before the deadline
        :raises PublishRefused: with nsqd's error
        :raises OutcomeUnknown: sent, but not confirmed: nsqd may or may not have it
        """
        now = monotonic()
        publish = self._make(topic, body, defer, now, timeout)
        self._send(publish, now)

    def publish_async(
        self,
        topic: str,
        body: Any,
        *,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> AsyncResult:
        """Publish one message without waiting for the answer; :meth:`publish` says what goes in.

        Waits only while ``max_pending_count`` publishes wait for a connection already. From any thread.
        May switch then.

        :returns: a gevent AsyncResult: ``get()`` gives None on nsqd's OK, or raises what publish raises
        :raises InvalidName, InvalidBody, NotRunning: at once
        """
        now = monotonic()
        publish = self._make(topic, body, defer, now, timeout)
        running = self._started()
        hub_handle, pool = running.hub_handle, running.pool
        result = PublishResult(publish, hub_handle)
        if pool.waiting_count + hub_handle.backlog >= self.options.max_pending_count:
            room = hub_handle.run(pool.room)
            if not hub_handle.wait(room, publish.deadline - monotonic()):
                hub_handle.call(publish.complete, NotSent(f"no room in time: {pool.why()}"))
                return result
        if thread_id() == running.thread:
            running.begin(publish, now)
        else:
            hub_handle.call(running.begin, publish, now)
        return result

    def multi_publish(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        atomic: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Publish several messages, with one MPUB for as many as ``max_body_bytes`` holds. May switch.

        nsqd takes an MPUB whole or not at all. When an error is raised, the MPUBs before the one that
        failed are published, and none after it. From any thread.

        :param bodies: any iterable of bodies, read as it goes; none at all is no error
        :param atomic: refuse, with InvalidBody, what does not fit into one MPUB
        :param timeout: seconds for each MPUB; the option of that name if not given
        :raises: as :meth:`publish`
        """
        for chunk in self._encoder.chunks(bodies, atomic):
            now = monotonic()
            command = self._encoder.mpub(topic, chunk)
            deadline = now + self._seconds(timeout)
            self._send(Publish(self._started().pool, topic, command, deadline, len(chunk)), now)

    def check(self, topic: str, body: Any, *, defer: float | None = None) -> bytes:
        """What :meth:`publish` would send as this body, after the checks that it makes. Never switches.

        For what is published later (when a transaction has ended, say), and should be right now.

        :raises InvalidName, InvalidBody, InvalidOption: as publish
        """
        encoder = self._encoder
        body = encoder.body(body)
        if defer is None:
            encoder.head(topic)
        else:
            encoder.dpub(topic, defer, body)
        return body

    def _make(self, topic: str, body: Any, defer: float | None, now: float, timeout: float | None) -> Publish:
        """Check and encode; every local error is raised here."""
        encoder = self._encoder
        body = encoder.body(body)
        deadline = now + (self._timeout if timeout is None else self._seconds(timeout))
        batched = defer is None and self._batches
        if batched:
            command = b""
            encoder.head(topic)
        else:
            command = encoder.pub(topic, body) if defer is None else encoder.dpub(topic, defer, body)
        running = self._running
        if running is None or running.pid != _getpid():  # as _started() asks again: a call less is felt here
            running = self._started()
        if not batched:
            return Publish(running.pool, topic, command, deadline)
        member = Member(running.pool, topic, command, deadline)
        member.body = body
        return member

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self._timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            raise InvalidOption("timeout", timeout, "it must be seconds, above 0")
        return timeout

    def _send(self, publish: Publish, now: float) -> None:
        running = self._running
        if running is None:  # closed by another thread since
            raise NotRunning("the Producer is closed")
        if thread_id() == running.thread:
            if type(publish) is Member:  # as begin() does, without the call: it is felt here
                running.batching.add(publish)  # type: ignore[union-attr]
            else:
                running.begin(publish, now)
            publish.wait_here()
        else:
            self._send_from_other_thread(running, publish, now)
        if publish.error is not None:
            # A batch or a lost connection gives many publishes the same error: each its own traceback.
            raise publish.error.with_traceback(None)

    @staticmethod
    def _send_from_other_thread(running: _Running, publish: Publish, now: float) -> None:
        """As the caller's thread is not the connections': hand over, and wait here. May switch, or block."""
        wait = CrossThreadWait(publish)
        running.hub_handle.call(running.begin, publish, now)
        try:
            answered = wait.wait(publish.deadline - now + _GRACE)
        except BaseException:
            running.hub_handle.call(publish.abandon)
            raise
        if not answered:
            running.hub_handle.call(publish.abandon)
            raise OutcomeUnknown(str(publish.sent_to), "the thread of its connection does not run")

    # -- life ---------------------------------------------------------------------------------------

    def _started(self) -> _Running:
        """What does the work; made now if this is the first call in this process. May block for an instant."""
        running = self._running
        if running is not None and running.pid == _getpid():
            return running
        if self._closed:
            raise NotRunning("the Producer is closed")
        with _starting:
            if self._running is None or self._running.pid != _getpid():
                hub_handle = _choose_hub(self.options.own_thread)
                pool = Pool(self._addresses, self._lookupds, self.options, self._hooks, hub_handle)
                self._pool = pool
                self._running = _Running(hub_handle, pool, self._encoder)
                at_fork.register(self)
                _at_exit.add(self)
            return self._running

    def close(self, timeout: float = 5.0) -> bool:
        """Take no more, wait for the answers still due, and close; twice is fine. From any thread. May switch.

        :param timeout: seconds to wait
        :returns: whether all that was pending was answered
        """
        self._closed = True
        running, self._running = self._running, None
        if running is None or running.pid != _getpid():
            return True
        return bool(running.hub_handle.run(running.end, timeout, timeout=timeout + _GRACE))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def forked_child(self) -> None:
        """For ``forks``: this process is a child; the next publish begins anew. Never switches."""
        running, self._running = self._running, None
        self._pool = None
        hub_thread.forget_background()
        global _starting
        _starting = allocate_lock()  # its holder is the parent's
        if running is not None:
            self._hooks.forked_child()
            running.pool.forked_child()
            if running.batching is not None:
                running.batching.forked_child()

    def flush_at_exit(self, timeout: float) -> None:
        """For the interpreter's exit: what is pending leaves, on open connections only."""
        running = self._running
        if (
            running is not None
            and running.pid == _getpid()
            and running.hub_handle.run(running.pool.settle_down, timeout=1)
        ):
            running.hub_handle.run(running.drain, timeout, timeout=timeout)

    # -- looking ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        names = ", ".join([*map(str, self._addresses), *self._lookupds])
        return f"<Producer {names}{' closed' if self._closed else ''}>"

    def stats(self) -> dict[str, Any]:
        """Counts of messages since the first publish, kept after close(), and the connections. From any thread."""
        pool = self._pool
        return {
            "state": "closed" if self._closed else "new" if pool is None else "running",
            **asdict(PublishCounts() if pool is None else pool.counts),
            "waiting": 0 if pool is None else pool.waiting_count,
            "connections": {}
            if pool is None
            else {destination.name: destination.stats() for destination in list(pool.destinations)},
        }


#: Producers that published; at exit they may have something pending.
_at_exit: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    deadline = monotonic() + _EXIT_TIMEOUT
    for producer in list(_at_exit):
        left = deadline - monotonic()
        if left <= 0:
            break
        with suppress(TimeoutError, NSQError):
            producer.flush_at_exit(left)
    hub_thread.end_background(_EXIT_TIMEOUT)
