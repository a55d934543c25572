"""One publish, or its copies for several nsqds: encoded, queued, sent, or done; how publishes end is counted here.

``Encoder`` makes its command: every local error is raised there, before anything is registered. A ``Publish`` is also
the token that a connection settles. Its owner, the pool, may retry it after an error, perhaps on another nsqd; the
caller sees only the final outcome. If the caller is gone by then (killed, or timed out), nothing changes on the wire.

The thread of the connections calls a publish's links once its outcome is known. A link wakes the caller in its own way:
see ``producer``.

Rules for editors: a Publish belongs to its pool's thread, except for ``link`` before it is passed to that thread,
``withdraw``, ``forget`` and ``give_up``. Only ``wait_in`` may switch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from gevent import getcurrent

from gnsq_like.errors import InvalidBody, NotSent, OutcomeUnknown, PublishRefused, check_seconds
from gnsq_like.options import ProducerOptions
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.wire import commands
from gnsq_like.wire.names import encode_topic

#: Greenlets resumed per iteration of the hub, which then polls its sockets.
_RESUME_COUNT = 500
#: An MPUB's body begins with the number of messages (docs/internals 1.10).
COUNT_BYTES = 4
#: Each message in it begins with its size.
SIZE_BYTES = 4
#: Limit of cached command lines, because a faulty caller may generate topics.
_MOST_HEADS = 4096

_pack_size = struct.Struct(">i").pack

_NO_RESPONSE = "the thread of the connections does not respond"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _msgpack(value: Any) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb(value)
    return packed


def mpub_of(line: bytes, count: int, content: bytes) -> bytes:
    """MPUB to the topic of a PUB.

    :param line: of the PUB
    :param content: the size and the bytes of each of ``count`` bodies
    """
    return b"M%b%b%b%b" % (line, _pack_size(COUNT_BYTES + len(content)), _pack_size(count), content)


class Encoder:
    """Checks and encodes publishes."""

    def __init__(self, options: ProducerOptions) -> None:
        self._limit = options.max_msg_bytes
        self._body_limit = options.max_body_bytes
        given = options.encoder
        self._encode = {"json": _json, "msgpack": _msgpack}[given] if isinstance(given, str) else given
        self._heads: dict[str, bytes] = {}

    def body(self, given: Any) -> bytes:
        """The bytes of one message; raises InvalidBody."""
        if type(given) is bytes and given and len(given) <= self._limit and self._encode is None:
            return given
        if self._encode is not None:
            try:
                given = self._encode(given)
            except Exception as exc:
                raise InvalidBody(f"the encoder failed on a body of type {type(given).__name__}: {exc}") from exc
            if not isinstance(given, bytes | bytearray | memoryview):
                raise InvalidBody(f"the encoder must return bytes, and returned {type(given).__name__}")
        elif isinstance(given, str):
            raise InvalidBody(
                "message body must be bytes, not str: encode it yourself, or set the Producer's encoder=, "
                'such as "json" or str.encode'
            )
        return commands.encode_body(given, self._limit)

    def head(self, topic: str) -> bytes:
        """The line of a PUB; raises InvalidName."""
        head = self._heads.get(topic) if type(topic) is str else None
        if head is None:
            head = b"PUB %b\n" % encode_topic(topic)
            if len(self._heads) < _MOST_HEADS:
                self._heads[topic] = head
        return head

    def pub(self, topic: str, given: Any) -> bytes:
        """PUB of one message; raises InvalidBody, InvalidName."""
        if self._encode is not None or type(given) is not bytes or not given:
            given = self.body(given)
        size = len(given)
        if size > self._limit:
            commands.encode_body(given, self._limit)  # raises
        head = self._heads.get(topic) if type(topic) is str else None
        return b"".join((head or self.head(topic), _pack_size(size), given))

    def dpub(self, topic: str, defer: float, body: bytes) -> bytes:
        """DPUB of a checked body, after ``defer`` seconds. Raises InvalidName, InvalidOption."""
        check_seconds("defer", defer, minimum=0)
        return commands.dpub(topic, round(defer * 1000), body)

    def mpub(self, topic: str, bodies: list[bytes]) -> bytes:
        """MPUB of checked bodies. Raises InvalidName."""
        content = b"".join(chain.from_iterable(zip(map(_pack_size, map(len, bodies)), bodies, strict=True)))
        return mpub_of(self.head(topic), len(bodies), content)

    def _fit(self, bodies: Sequence[Any]) -> bool:
        """Whether all are valid bodies that fit into one MPUB: a tenth of the cost of checking each."""
        if self._encode is not None or set(map(type, bodies)) != {bytes}:
            return False
        sizes = list(map(len, bodies))
        if not 0 < min(sizes) <= max(sizes) <= self._limit:
            return False
        return COUNT_BYTES + SIZE_BYTES * len(sizes) + sum(sizes) <= self._body_limit

    def chunks(self, bodies: Iterable[Any], atomic: bool) -> Iterator[list[bytes]]:
        """Check bodies, and split them into lists for one MPUB each. Reads the iterable lazily.

        :param atomic: raise InvalidBody if they do not fit into one
        """
        if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Iterable):
            raise InvalidBody(f"multi_publish takes an iterable of bodies, not one of type {type(bodies).__name__}")
        if isinstance(bodies, list | tuple) and self._fit(bodies):
            yield list(bodies)
            return
        limit = self._body_limit
        chunk: list[bytes] = []
        size = COUNT_BYTES
        for position, given in enumerate(bodies):
            try:
                body = self.body(given)
            except InvalidBody as exc:
                raise InvalidBody(f"message {position}: {exc}") from exc
            added = SIZE_BYTES + len(body)
            if COUNT_BYTES + added > limit:
                raise InvalidBody(f"message {position}: {len(body)} bytes do not fit into max_body_bytes={limit}")
            if chunk and size + added > limit:
                if atomic:
                    raise InvalidBody(
                        f"atomic=True, but the messages do not fit into one MPUB of max_body_bytes={limit}: "
                        f"message {position} exceeds it"
                    )
                yield chunk
                chunk = []
                size = COUNT_BYTES
            chunk.append(body)
            size += added
        if chunk:
            yield chunk


@dataclass(slots=True)
class PublishCounts:
    """Messages by the outcome of their publish, since the start."""

    confirmed: int = 0
    refused: int = 0
    unknown: int = 0
    not_sent: int = 0
    #: Commands sent again after a failure.
    retried: int = 0

    def failed(self, error: Exception, count: int) -> None:
        """A publish of ``count`` messages failed for good."""
        if isinstance(error, PublishRefused):
            self.refused += count
        elif isinstance(error, OutcomeUnknown):
            self.unknown += count
        else:
            self.not_sent += count


class PublishOwner(Protocol):
    """The part of the pool that a publish and the group of its copies use. Nothing here switches."""

    counts: PublishCounts
    awake: Awake
    #: Those that end at their deadlines unless they are settled before.
    pending: dict[Publish, None]
    hub_handle: HubHandle

    def failed(self, publish: Publish, error: Exception) -> None: ...
    def changed(self) -> None: ...
    def doubt(self, address: str) -> None: ...
    def why(self, but: Collection[str] = ()) -> str: ...
    def submit(self, publish: Publish, now: float) -> None: ...
    def watch(self, publish: Publish) -> None: ...


class Publish(PendingReply):
    """A PUB, MPUB or DPUB and its outcome.

    :param owner: the pool that sends it
    :param command: its bytes; empty if they are made later (a batch, or a copy)
    :param deadline: monotonic time
    :param count: number of messages, for the statistics
    """

    __slots__ = (
        "carrier",
        "command",
        "count",
        "deadline",
        "doubt",
        "greenlet",
        "is_abandoned",
        "owner",
        "sent_to",
    )

    #: Of a copy, that of all copies.
    group: Group | None = None

    def __init__(self, owner: PublishOwner, command: bytes, deadline: float, count: int = 1) -> None:
        # As PendingReply's, but a call costs time here.
        self.done: bool = False
        self.error: Exception | None = None
        self._links = None
        self.owner: PublishOwner = owner
        self.command: bytes = command
        self.deadline: float = deadline
        self.count: int = count
        #: The greenlet of the pool's hub that waits for it.
        self.greenlet: Any = None
        #: The address of the nsqd it was sent to; None while queued.
        self.sent_to: str | None = None
        #: An earlier try with unknown outcome; no later error may then claim that nsqd does not have it.
        self.doubt: OutcomeUnknown | None = None
        #: The batch that contains it, or the group of its copies; None if it is sent by itself.
        self.carrier: Publish | Group | None = None
        #: Whether its caller is gone, and its outcome is still to be counted.
        self.is_abandoned: bool = False

    def encode(self) -> bytes:
        """The command, just before it is sent; empty if there is nothing left to send."""
        return b"" if self.done else self.command

    @property
    def description(self) -> str:
        """For the text of a refusal: the size, the topic and the delay, from the command; empty for a batch."""
        head, _, body = self.command.partition(b"\n")
        if not head:
            return ""
        name, topic, *delay = head.decode().split()
        many = f"{int.from_bytes(body[SIZE_BYTES : 2 * SIZE_BYTES])} messages in " if name == "MPUB" else ""
        deferred = f", deferred by {int(delay[0]) / 1000:g} s" if delay else ""
        return f"{many}{len(body) - SIZE_BYTES} bytes to {topic}{deferred}"

    def settle(self, error: Exception | None = None) -> None:
        """Set the final outcome, and wake the caller. Never switches."""
        self.owner.pending.pop(self, None)
        if not self.done:
            if self.greenlet is not None:
                self.owner.awake.add(self)  # before it is done: an interruption between the two is made good
            self.error = error
            self.done = True
        elif self.is_abandoned:
            self.is_abandoned = False
        else:
            return
        if error is None:
            self.owner.counts.confirmed += self.count
        else:
            self.owner.counts.failed(error, self.count)
        if self._links is not None:
            self._call_links()

    def failed(self, error: Exception) -> None:
        """An attempt failed: the pool may try again. Never switches."""
        if self.done:
            self.settle(error)
        else:
            self.owner.failed(self, error)

    def expire(self) -> None:
        """Its deadline has passed. Never switches."""
        error = self.too_late()
        if isinstance(error, OutcomeUnknown):
            self.owner.doubt(error.address)
        self.settle(error)

    def too_late(self) -> Exception:
        """The error at its deadline: not sent, or outcome unknown."""
        if self.carrier is not None:
            return self.carrier.too_late()
        if self.sent_to is not None:
            return OutcomeUnknown(self.sent_to, "no answer in time")
        if self.doubt is not None:
            return self.doubt
        return NotSent(f"not sent in time: {self.owner.why()}")

    def withdraw(self) -> None:
        """Give up from another thread, because the pool's thread has not settled it in time. Never switches.

        The pool's thread sets ``sent_to`` before it looks at ``done``, this sets ``done`` first: so either that thread
        does not send it, or this sees that it may.
        """
        if self.done:
            return
        self.error = NotSent(f"not sent in time: {_NO_RESPONSE}")
        self.done = True
        late = self.too_late()
        if isinstance(late, OutcomeUnknown):
            self.error = OutcomeUnknown(late.address, f"{late.reason}; {_NO_RESPONSE}", late.confirmed)
        self.owner.hub_handle.call(self._withdrawn)

    def _withdrawn(self) -> None:
        assert self.error is not None
        self.owner.counts.failed(self.error, self.count)
        self.owner.changed()
        self._call_links()

    def forget(self) -> None:
        """The caller is gone: do not send it if it is not sent yet, and only count its outcome. Never switches."""
        self.is_abandoned = self.is_abandoned or not self.done
        super().forget()

    def give_up(self) -> None:
        """As :meth:`forget`, from any thread: the wait for it was interrupted. Never switches."""
        self.forget()  # now: its thread may have what it waits for before the call
        self.owner.hub_handle.call(self._given_up)

    def _given_up(self) -> None:
        if not self.is_sent:
            self.leave_out()
        self.owner.changed()

    def leave_out(self) -> None:
        """It is not sent, or not again, because its caller is gone: count that. Never switches."""
        self.settle(self.doubt or NotSent("its caller is gone"))

    @property
    def is_sent(self) -> bool:
        """Whether nsqd may answer it."""
        return self.sent_to is not None or (self.carrier is not None and self.carrier.is_sent)

    def wait_in(self, hub: Any) -> None:
        """Wait until done, in a greenlet of this hub, the pool's. May switch. Next, if interrupted: :meth:`give_up`."""
        self.greenlet = getcurrent()
        try:
            while not self.done:
                hub.switch()
        finally:
            self.greenlet = None

    @staticmethod
    def confirm_all(publishes: Iterable[Publish]) -> int:
        """Settle several with success, at a third of the cost of settling each. Never switches.

        :returns: the number that were not settled before, which the caller counts
        """
        count = 0
        for publish in publishes:
            if not publish.done:
                if publish.greenlet is not None:
                    publish.owner.awake.add(publish)  # before it is done: an interruption between the two is made good
                publish.owner.pending.pop(publish, None)
                publish.done = True
                count += 1
                if publish._links is not None:
                    publish._call_links()
        return count


class Copy(Publish):
    """One copy of a publish; avoids the nsqds of the others."""

    __slots__ = ("group",)

    def __init__(self, pool: PublishOwner, group: Group) -> None:
        super().__init__(pool, b"", group.publish.deadline, count=0)
        self.group: Group = group

    @property
    def description(self) -> str:
        return self.group.publish.description

    def encode(self) -> bytes:
        """The command; empty if the group has failed, or if none was sent when its caller left."""
        publish = self.group.publish
        command = b"" if publish.done and publish.error is not None else self.group.encode()
        if not command:
            self.leave_out()
        return b"" if self.done else command

    def settle(self, error: Exception | None = None) -> None:
        if not self.done:
            super().settle(error)
            self.group.check()


class Group:
    """All copies of a publish, as its carrier (NSQ's redundant pair).

    It sends ``replicas`` copies, each to a different nsqd, and succeeds when ``quorum`` of them are confirmed; the
    others continue until the deadline. A copy that could not be sent is tried on another nsqd, like any publish. If the
    quorum is not reached when all copies are done or the deadline has passed, the publish fails: with NotSent or
    PublishRefused if that holds for all copies, otherwise with OutcomeUnknown and the addresses that have the message.
    """

    __slots__ = ("_command", "_copies", "_needed", "_pool", "publish")

    def __init__(self, pool: PublishOwner, publish: Publish, options: ProducerOptions) -> None:
        self._pool = pool
        self.publish: Publish = publish
        self._needed = options.needed
        self._command = b""
        self._copies = [Copy(pool, self) for _ in range(options.replicas)]

    @property
    def taken(self) -> AbstractSet[str]:
        """The addresses of the nsqds that have a copy, or may have."""
        sent = {copy.sent_to for copy in self._copies if copy.sent_to is not None}
        return sent | {copy.doubt.address for copy in self._copies if copy.doubt is not None}

    @property
    def is_sent(self) -> bool:
        """Whether a copy is sent."""
        return bool(self.taken)

    def send(self, now: float) -> None:
        """Send the copies. Never switches."""
        for copy in self._copies:
            # Copies still queued when the quorum is reached need a deadline of their own.
            self._pool.watch(copy)
            self._pool.submit(copy, now)

    def encode(self) -> bytes:
        """The command for a copy that is now sent; the same for all copies, once another was sent."""
        if len(self.taken) == 1:
            self._command = self.publish.encode()
        return self._command

    def check(self) -> None:
        """A copy is done: complete the publish if that decides it. Never switches."""
        if self.publish.done and not self.publish.is_abandoned:
            return
        confirmed = sum(copy.done and copy.error is None for copy in self._copies)
        still_open = sum(not copy.done for copy in self._copies)
        if confirmed >= self._needed:
            self.publish.settle(None)
        elif not still_open:
            self.publish.settle(self.too_late())

    def too_late(self) -> Exception:
        """The publish's error if no more copies are confirmed."""
        confirmed = tuple(str(copy.sent_to) for copy in self._copies if copy.done and copy.error is None)
        errors = [copy.error for copy in self._copies if copy.error is not None]
        unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
        unknown += [copy.doubt for copy in self._copies if copy.doubt is not None]
        refused = [error for error in errors if isinstance(error, PublishRefused)]
        for copy in self._copies:
            if not copy.done and copy.sent_to is not None:
                return OutcomeUnknown(copy.sent_to, "no answer in time", confirmed)
        if unknown:
            return OutcomeUnknown(unknown[0].address, unknown[0].reason, confirmed)
        if confirmed and refused:
            return OutcomeUnknown(refused[0].address, str(refused[0]), confirmed)
        if confirmed:
            return OutcomeUnknown("", f"not sent to another in time: {self._pool.why(but=confirmed)}", confirmed)
        if refused:
            return refused[0]
        return errors[0] if errors else NotSent(f"not sent in time: {self._pool.why()}")


class Awake(list[Publish]):
    """Publishes of this hub's greenlets that are done: the hub of ``loop`` switches to each in its next iteration."""

    __slots__ = ("_run_callback",)

    def __init__(self, loop: Any) -> None:
        self._run_callback: Callable[[Callable[[], object]], object] = loop.run_callback

    def add(self, publish: Publish) -> None:
        """Resume the greenlet that waits for this, with the others. Never switches."""
        if not self:
            self._run_callback(self._resume)
        self.append(publish)

    def resume(self) -> None:
        """Go on, if an exception has interrupted this. Never switches."""
        if self:
            self._run_callback(self._resume)

    def _resume(self) -> None:
        # A resumed greenlet returns here when it waits again.
        count = 0
        try:
            for publish in self[:_RESUME_COUNT]:
                greenlet = publish.greenlet
                if greenlet is not None:
                    greenlet.switch()
                count += 1  # last: what interrupts this leaves the rest in the list
        finally:
            del self[:count]
            self.resume()
