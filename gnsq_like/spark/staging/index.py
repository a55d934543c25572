"""Which messages were staged before, so that a redelivery of one is recognized as a copy.

nsqd delivers a message again unless its FIN was executed. So these messages may come again although they are staged:

- Messages of segments that no confirmation names, and those whose FIN failed. As long as their batch exists, its
  segments have their ids (``staging_log``); before the driver retires the batch, it keeps the ids under the kind
  "unsure". A redelivery has attempts above 1, so first deliveries are not looked up, and usually nothing is kept.
- With dedupe=window, all messages of the last minutes, under the kind "window": an nsqd that is killed and has its
  queue on disk delivers messages that were finished just before once more, with attempts 1 (docs/internals S2).

An id counts together with its nsqd's address: two nsqds can have the same ids.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from gnsq_like.spark.staging.records import DamagedRecord
from gnsq_like.spark.staging.segments import RawMessage, ids_of
from gnsq_like.spark.staging.staging_log import (
    StagedPart,
    StagingLog,
    quoted,
    read_confirmed,
    read_record,
    staged_parts,
)
from gnsq_like.spark.staging.store import Store

logger = logging.getLogger(__name__)

#: The bytes of an id.
_ID_BYTES = 16

#: Ids by the name of the record that holds them, which never changes. Workers live for many batches.
_cache: dict[str, frozenset[bytes]] = {}


class Known:
    """The messages of one nsqd that were staged before, as an executor sees them.

    :param dedupe: "unconfirmed", "window" or "none"
    """

    def __init__(self, log: StagingLog, address: str, dedupe: str) -> None:
        self._log = log
        self._address = address
        self._dedupe = dedupe

    def fresh(self, messages: Sequence[RawMessage], *, suspicious: bool = False) -> Sequence[RawMessage]:
        """The messages that are not copies. Blocks on the store if something must be looked up.

        :param suspicious: whether first deliveries may be copies, too: of messages that were delivered again meanwhile
        """
        suspicious = suspicious or self._dedupe == "window" or max([each[1] for each in messages], default=0) > 1
        if not suspicious or self._dedupe == "none":
            return messages
        sets = self._look()
        fresh: dict[bytes, RawMessage] = {}
        for message in messages:
            if not any(message[2] in each for each in sets):
                fresh.setdefault(message[2], message)
        return list(fresh.values())

    def _look(self) -> list[frozenset[bytes]]:
        store, base = self._log.store, self._log.base
        # The driver writes the index before it retires a batch. So the batches are read first: ids that are gone from
        # there are in the index.
        found = dict(self._of_batches())
        for name in store.list(_place(base, self._address)):
            if "/unsure-" in name or self._dedupe == "window":
                found[name] = _cached(store, name, _read_ids)
        # Drop this nsqd's names from the cache that do not exist any more.
        for name in [name for name in list(_cache) if quoted(self._address) in name and name not in found]:
            _cache.pop(name, None)
        return list(found.values())

    def _of_batches(self) -> Iterator[tuple[str, frozenset[bytes]]]:
        log = self._log
        finished = log.committed()
        for part in staged_parts(log.names()):
            if part.address == self._address and part.batch > finished:
                try:
                    yield from staged_ids(log.store, part, every=self._dedupe == "window")
                except FileNotFoundError:
                    continue  # the batch was retired meanwhile


def staged_ids(store: Store, part: StagedPart, *, every: bool) -> Iterator[tuple[str, frozenset[bytes]]]:
    """The ids of a part's messages, by the name that holds them: all, or those whose FIN is unsure."""
    confirmed = read_confirmed(store, part)
    for number in part.records:
        if every or number not in confirmed.segments:
            name = f"{part.place}/{number:06d}"
            yield name, _cached(store, name, _segment_ids)
    if confirmed.failed:
        yield f"{part.place}/failed", confirmed.failed


def remember(log: StagingLog, part: StagedPart, *, window: bool) -> None:
    """Keep the ids that must outlive the part. For the driver, before it retires the batch."""
    store = log.store
    for kind, every in [("unsure", False), ("window", True)][: 1 + window]:
        held = dict(staged_ids(store, part, every=every))
        ids = frozenset[bytes]().union(*held.values())
        if ids:
            place = _place(log.base, part.address)
            store.make(place)
            name = f"{place}/{kind}-{time.time():.0f}-{part.log}-{part.batch}-{part.split}"
            store.create(name, b"".join(sorted(ids)))


def forget(log: StagingLog, retention: dict[str, float]) -> None:
    """Remove ids that are older than the seconds given for their kind. For the driver."""
    now = time.time()
    for name in log.store.list(f"{log.base}/index"):
        kind, since, _ = name.rpartition("/")[2].split("-", 2)
        if now - float(since) > retention[kind]:
            log.store.retire(name)


def _place(base: str, address: str) -> str:
    return f"{base}/index/{quoted(address)}"


def _cached(store: Store, name: str, read: Callable[[Store, str], frozenset[bytes]]) -> frozenset[bytes]:
    found = _cache.get(name)
    if found is None:
        found = _cache[name] = read(store, name)
    return found


def _segment_ids(store: Store, name: str) -> frozenset[bytes]:
    try:
        record = read_record(store, name)
    except DamagedRecord as exc:
        # Its own task reports it, unless Spark has its rows already.
        logger.warning("%s: copies of its messages would not be recognized", exc)
        return frozenset()
    return frozenset() if record.end is not None else frozenset(ids_of(record.content))


def _read_ids(store: Store, name: str) -> frozenset[bytes]:
    try:
        data = bytes(store.read(name))
    except FileNotFoundError:  # it became too old just now
        return frozenset()
    return frozenset(data[start : start + _ID_BYTES] for start in range(0, len(data), _ID_BYTES))
