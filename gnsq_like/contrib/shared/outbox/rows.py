"""Rows of an outbox: their fields for a relay, their shards, and the checks of new rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from gnsq_like.contrib.shared import envelope as envelopes
from gnsq_like.errors import InvalidOption

#: Shards of the keys; a relay has a shard for the time of a batch. Fixed: it is in the rows, and relays of two versions
#: may run side by side.
SHARDS = 16
#: The shard of rows without a key, of which several relays take different ones at a time.
NO_KEY = SHARDS
#: The shard of deferred rows, which have no key either.
DEFERRED = SHARDS + 1

#: The longest key, in characters; a column has this length.
MAX_KEY_CHARS = 200
#: The largest number: each takes as many bytes in an envelope.
_ANY_NUMBER = 2**63 - 1


class Row(NamedTuple):
    """An unpublished row."""

    id: int
    topic: str
    #: "" for none.
    key: str
    body: bytes


class Skipped(NamedTuple):
    """Rows that a relay leaves for later, because nsqd has refused them or one before them."""

    #: Of rows without a key.
    ids: frozenset[int] = frozenset()
    #: Topics and keys.
    keys: frozenset[tuple[str, str]] = frozenset()


def shard_of(topic: str, key: str, *, is_deferred: bool = False) -> int:
    """The shard of a new row. Pure."""
    if is_deferred:
        return DEFERRED
    return zlib.crc32(f"{topic}\n{key}".encode()) % SHARDS if key else NO_KEY


def lock_number(table: str) -> int:
    """The first number of the table's advisory locks; the second is the shard. Pure."""
    return zlib.crc32(table.encode()) - 2**31


def checked_key(key: object, defer: float | None) -> str:
    """The key of a new row; "" for None. Pure.

    :raises InvalidOption: for a key that is not text, too long or empty, and for a deferred message with a key
    """
    if key is None:
        return ""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS:
        raise InvalidOption("key", key, f"it must be text of 1 to {MAX_KEY_CHARS} characters")
    if "\0" in key:
        raise InvalidOption("key", key, "it must not contain a null character")
    if defer is not None:
        raise InvalidOption("key", key, "a deferred message has no place in an order: leave out key or defer")
    return key


def check_unused(key: object, envelope: object) -> None:
    """Check a publish without an outbox.

    :raises InvalidOption: if one of these is given
    """
    for name, value in {"key": key, "envelope": envelope}.items():
        if value is not None:
            raise InvalidOption(name, value, "it needs the outbox")


def checked_delay(defer: object) -> float | None:
    """Seconds until a new row is published, or None. nsqd's limit does not apply, because the row waits. Pure.

    :raises InvalidOption: if it is not seconds of at most ten years
    """
    if defer is None:
        return None
    if isinstance(defer, bool) or not isinstance(defer, int | float) or not 0 <= defer <= 10 * 366 * 86_400:
        raise InvalidOption("defer", defer, "it must be seconds, from 0 to ten years")
    return float(defer)


class Tracing(Protocol):
    """The members of an application's Tracing that an outbox uses."""

    def carrier(self, topic: str) -> Mapping[str, str]: ...
    def event(self, topic: str, body: bytes, *, is_json: bool) -> bytes: ...


class NewRows:
    """Messages that are to be inserted: checked and encoded, not numbered yet. Next: :meth:`values`.

    :param bodies: as of ``publish``
    :param key: None for no key
    :param defer: seconds until they are published; None for now
    :param envelope: whether each gets an envelope; None for those with a key
    :param check: the Producer's: returns the encoded body, or raises
    :param tracing: adds the current trace; None for none
    :raises InvalidName, InvalidBody, InvalidOption: if one of them cannot be published
    """

    def __init__(
        self,
        topic: str,
        bodies: Iterable[object],
        *,
        key: str | None,
        defer: float | None,
        envelope: bool | None,
        check: Callable[[str, Any], bytes],
        tracing: Tracing | None,
    ) -> None:
        self.topic = topic
        #: "" for none.
        self.key = checked_key(key, defer)
        self._delay = checked_delay(defer)
        self._wraps = bool(self.key) if envelope is None else envelope
        self._extensions = {} if tracing is None else tracing.carrier(topic)
        #: Each encoded, and whether it is JSON.
        self._encoded: list[tuple[bytes, bool]] = []
        for body in bodies:
            data = check(topic, body)
            is_json = not isinstance(body, bytes | bytearray | memoryview) and envelopes.is_json(data)
            if not self._wraps and tracing is not None:
                data = tracing.event(topic, data, is_json=is_json)
            check(topic, self._sent(data, is_json, _ANY_NUMBER if self.key else None))
            self._encoded.append((data, is_json))

    def __len__(self) -> int:
        return len(self._encoded)

    def _sent(self, data: bytes, is_json: bool, sequence: int | None) -> bytes:
        if not self._wraps:
            return data
        return envelopes.pack_for_outbox(
            data, is_json=is_json, topic=self.topic, key=self.key, sequence=sequence, extensions=self._extensions
        )

    def values(self, last: int | None, now: datetime) -> Sequence[dict[str, Any]]:
        """The columns of each row.

        :param last: the number of the last one; None without a key
        """
        first = None if last is None else last - len(self) + 1
        return [
            {
                "topic": self.topic,
                "key": self.key,
                "sequence": (sequence := None if first is None else first + position),
                "shard": shard_of(self.topic, self.key, is_deferred=self._delay is not None),
                "body": self._sent(data, is_json, sequence),
                "created_at": now,
                "due_at": None if self._delay is None else now + timedelta(seconds=self._delay),
            }
            for position, (data, is_json) in enumerate(self._encoded)
        ]
