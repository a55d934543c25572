"""Publishes the records of a stream, as NSQ's to_nsq does: ``gnsq-like pub``.

Records are published without waiting for the answers of those before them, up to a window, and batched; an error stops
the rest. A last record without the delimiter counts (NSQ's own loses its last byte); empty records are skipped.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import AsyncResult, Event

from gnsq_like import Producer
from gnsq_like.cluster.rounds import Unreachable
from gnsq_like.errors import NSQError

#: Bytes to read at once.
_CHUNK_BYTES = 256 * 1024
#: The most unanswered messages, and their bytes.
WINDOW_COUNT = 5000
WINDOW_BYTES = 16 * 1024 * 1024
#: Seconds for which a rate's unused share is kept, as in NSQ's own.
_BURST = 1.0


class BadRecord(NSQError):
    """A record that cannot be published, or was not.

    :ivar number: counted from 1, over all inputs
    :ivar reason: why
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"record {self.number}: {self.reason}"


@dataclass
class Progress:
    """The progress, updated while :func:`publish_records` runs."""

    #: Bytes of input.
    read_bytes: int = 0
    #: Messages that every nsqd concerned has confirmed.
    published: int = 0
    #: Whether the input was read to its end.
    complete: bool = False


def read_chunks(descriptor: int, stop: Event) -> Iterator[bytes]:
    """Read from a file, pipe or terminal, until its end or until ``stop`` is set. May switch."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        while not stop.is_set() and (data := os.read(descriptor, _CHUNK_BYTES)):
            yield data
            gevent.sleep(0)
        return
    readable = Event()
    watcher = gevent.get_hub().loop.io(descriptor, 1)
    watcher.start(readable.set)
    try:
        while True:
            gevent.wait([readable, stop], count=1)
            if stop.is_set():
                return
            readable.clear()
            data = os.read(descriptor, _CHUNK_BYTES)
            if not data:
                return
            yield data
    finally:
        watcher.stop()
        watcher.close()


def split_records(chunks: Iterable[bytes], delimiter: bytes, limit: float = math.inf) -> Iterator[bytes]:
    """The records between delimiters, as soon as they are complete; empty ones are left out. Never switches itself.

    :param limit: bytes of a record that may be incomplete; input without the delimiter is not read further than that
    :raises ValueError: an incomplete record is longer
    """
    begun: list[bytes] = []  # of the record that is incomplete, and its bytes
    size = 0
    end = b""  # what may be the beginning of a delimiter
    for chunk in chunks:
        *records, rest = (end + chunk).split(delimiter)
        for record in records:
            yield from filter(None, [b"".join([*begun, record])])
            begun, size = [], 0
        kept = max(0, len(rest) - len(delimiter) + 1)
        begun.append(rest[:kept])
        end = rest[kept:]
        size += kept
        if size > limit:
            raise ValueError(f"message body has more bytes than the limit of {limit}")
    yield from filter(None, [b"".join([*begun, end])])


def topic_by_field(field: str, default: str | None = None) -> Callable[[bytes], str]:
    """A function that returns a record's topic: the value of ``field`` in the JSON object.

    :param default: the topic of an object without the field
    :return: it raises ValueError with the reason if the record names no topic
    """

    def topic_of(record: bytes) -> str:
        try:
            value = json.loads(record)
        except ValueError:
            raise ValueError("it is not JSON") from None
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        topic = value.get(field, default)
        if not isinstance(topic, str):
            raise ValueError(f'its field "{field}" is missing' if topic is None else f'its "{field}" is not a string')
        return topic

    return topic_of


class Targets:
    """Where to publish.

    :param addresses: of nsqds; each message goes to all of them, or with ``to_one`` to one
    :param lookupds: of nsqlookupds, instead; each message goes to one of the nsqds that they know
    :param options: of the Producer
    :raises InvalidAddress, InvalidOption: if an argument is invalid
    """

    def __init__(
        self,
        addresses: Sequence[str],
        lookupds: Sequence[str] = (),
        *,
        to_one: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        addresses = list(dict.fromkeys(addresses))
        copies = 1 if to_one or lookupds else len(addresses)
        self._found = bool(lookupds)
        #: The number of addresses that need not be reached.
        self._spare = len(addresses) + len(lookupds) - copies
        self._connected: set[str] = set()
        #: The last error of each address that was never reached.
        self.errors: dict[str, NSQError] = {}
        #: Set when too few could be reached at the first try.
        self.unreachable = Event()
        self._producer = Producer(
            addresses,
            lookupd_http_addresses=lookupds,
            on_connect=self._connected.add,
            on_error=self._failed,
            **{"batching": True, "own_thread": False, "replicas": copies, **(options or {})},
        )

    @property
    def longest(self) -> int:
        """Bytes of the longest message."""
        return self._producer.options.max_msg_bytes

    def _failed(self, address: str, error: NSQError) -> None:
        if address not in self._connected:
            self.errors[address] = error
        is_found = self._found and self._connected  # one is enough, wherever it is
        if not is_found and len(self.errors.keys() - self._connected) > self._spare:
            self.unreachable.set()

    def publish(self, topic: str, record: bytes, defer: float | None) -> AsyncResult:
        """Publish without waiting for the answer, unless there is no room. May switch."""
        return self._producer.publish_async(topic, record, defer=defer)

    def confirm(self, result: AsyncResult) -> None:
        """Wait until a message is confirmed by all its nsqds. May switch.

        :raises Unreachable: too few could be reached at the first try
        :raises NSQError: it was not confirmed
        """
        if not result.ready():
            gevent.wait([result, self.unreachable], count=1)
        if not result.ready():
            raise Unreachable(self.errors)
        result.get()

    def close(self, timeout: float = 5.0) -> None:
        """Wait for pending publishes, and close. May switch."""
        self._producer.close(0.0 if self.unreachable.is_set() else timeout)


def publish_records(
    records: Iterable[bytes],
    targets: Targets,
    topic_of: Callable[[bytes], str],
    *,
    rate: float = 0.0,
    defer: float | None = None,
    progress: Progress | None = None,
) -> int:
    """Publish records, and wait for nsqd's answers. May switch.

    When ``records`` ends early, the records before that are published and confirmed.

    :param records: may raise ValueError with the reason why the next one cannot be read
    :param topic_of: returns a record's topic, or raises ValueError
    :param rate: messages a second, on average; 0 for as many as possible
    :param defer: seconds until nsqd delivers the messages
    :returns: the number of messages published
    :raises BadRecord: for the first record that names no topic, is too large, or was not confirmed; those before it
        were published, some of those after it may have been
    :raises Unreachable: none of the nsqds could be reached
    """
    progress = progress or Progress()
    pending: deque[tuple[int, int, AsyncResult]] = deque()
    pending_bytes = 0
    pace = _Pace(rate)
    error: BadRecord | None = None

    def settle_oldest() -> None:
        nonlocal pending_bytes
        number, size, sent = pending.popleft()
        pending_bytes -= size
        try:
            targets.confirm(sent)
        except Unreachable:
            raise
        except NSQError as exc:
            raise BadRecord(number, str(exc)) from exc
        progress.published += 1

    remaining = iter(records)
    for number in itertools.count(1):
        try:
            record = next(remaining, None)
            if record is None:
                break
            pace.wait()
            topic = topic_of(record)
            sent = targets.publish(topic, record, defer)
        except (ValueError, NSQError) as exc:
            error = BadRecord(number, str(exc))
            break
        pending.append((number, len(record), sent))
        pending_bytes += len(record)
        while len(pending) > WINDOW_COUNT or pending_bytes > WINDOW_BYTES or (pending and pending[0][2].ready()):
            settle_oldest()
    while pending:
        settle_oldest()
    if error is not None:
        raise error
    return progress.published


class _Pace:
    """Waits so that calls come at a rate; the unused part of the last second may be caught up."""

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._due = time.monotonic()

    def wait(self) -> None:
        """May switch."""
        if not self._interval:
            return
        now = time.monotonic()
        if self._due > now:
            gevent.sleep(self._due - now)
        self._due = max(self._due, now - _BURST) + self._interval
