"""Rows of an outbox: what a relay needs of them, which shard they belong to, and what a new one may be."""

from __future__ import annotations

import zlib
from typing import NamedTuple

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

    :raises InvalidOption: for a key that is no text, too long or empty, and for one of a deferred message
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
    """For a publish without an outbox.

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
