"""Which messages were staged before: what makes a redelivery a copy, and not a message.

nsqd delivers again what was not surely finished. What it may deliver again although it is staged is known:

- the messages of segments that no confirmation names, and those whose FIN failed. While their batch is there, its
  segments themselves tell (``log``); before the batch is retired, the driver keeps those ids under the kind
  "unsure". A redelivery has attempts above 1, so others are not looked up, and the usual case retains nothing.
- with dedupe=window, everything of the last minutes, kind "window": an nsqd that is killed and has its queue on
  disk gives what was finished just before once more, with attempts 1 (docs/internals S2).

An id counts together with its nsqd's address: ids of two nsqds can be the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from gnsq_like.spark.staging.segments import RawMessage, ids_of
from gnsq_like.spark.staging.staging_log import StagedPart, StagingLog, is_end, quoted, read_confirmed, staged_parts
from gnsq_like.spark.staging.store import Store

#: Bytes of an id.
_ID_BYTES = 16

#: Ids by the name of what holds them, which never changes; workers live for many batches.
_cache: dict[str, frozenset[bytes]] = {}


class Known:
    """What was staged of one nsqd's messages, as an executor sees it.

    :param dedupe: "unconfirmed", "window" or "none"
    """

    def __init__(self, log: StagingLog, address: str, dedupe: str) -> None:
        self._log = log
        self._address = address
        self._dedupe = dedupe

    def fresh(self, messages: Sequence[RawMessage], *, suspicious: bool = False) -> Sequence[RawMessage]:
        """Those that are no copies. Blocks on the store if there is anything to look up.

        :param suspicious: whether first deliveries, too, may be copies: of what was delivered again meanwhile
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
        # The driver writes the index before it retires a batch. So the batches are read first: what is gone
        # from there by now is in the index.
        found = dict(self._of_batches())
        for name in store.list(_place(base, self._address)):
            if "/unsure-" in name or self._dedupe == "window":
                found[name] = _cached(store, name, _read_ids)
        # The cache is for one nsqd's names at a time at least, and holds nothing that is no longer there.
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
    """Ids of a part's messages under the name that holds them: every one, or those whose FIN is unsure."""
    confirmed = read_confirmed(store, part)
    for number in part.records:
        if every or number not in confirmed.segments:
            name = f"{part.place}/{number:06d}"
            yield name, _cached(store, name, _segment_ids)
    if confirmed.failed:
        yield f"{part.place}/failed", confirmed.failed


def remember(log: StagingLog, part: StagedPart, *, window: bool) -> None:
    """Keep what must outlive the part. For the driver, before it retires the batch."""
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
    """Remove what is older than the seconds given for its kind. For the driver."""
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
    data = store.read(name)
    return frozenset() if is_end(data) else frozenset(ids_of(data))


def _read_ids(store: Store, name: str) -> frozenset[bytes]:
    try:
        data = bytes(store.read(name))
    except FileNotFoundError:  # just now too old
        return frozenset()
    return frozenset(data[start : start + _ID_BYTES] for start in range(0, len(data), _ID_BYTES))
