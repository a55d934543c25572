"""The ids of staged messages, which identify later deliveries as copies.

A message is the copy of one that was staged if nsqd has delivered it again, because its FIN was not executed, or
because nsqd was killed and read its disk queue again. nsqd counts attempts, which saves most of the work:

- A message with attempts above 1 may be a copy of anything, so it is looked up in all ids.
- One with attempts 1 can be a copy only if nsqd was restarted within ``dedupe_within``: a killed one reads its disk
  queues again, and with them messages that it had delivered (docs/internals S2), some of them twice. Each attempt of a
  task notes nsqd's ``start_time``. If ids were staged under another one, all messages are looked up. So are those of an
  nsqd that has just been started by this machine's clock; if that is wrong, what was noted still counts.
- Or it was in hand when its connection was lost or its time was over, so that nsqd may have delivered it to another
  task. The caller knows (``suspicious``), and all ids are looked up.

Ids count for one nsqd, topic and channel. They are numbers of 8 bytes, sorted, in files below ``ids/<nsqd>``::

    <kind>-<first>-<last>-<count>-<time>-<start>-<of>

``first`` and ``last`` are the smallest and the largest id, so that most look-ups open no file: nsqd's ids grow with
time. ``time`` is the driver's, and ``start`` is nsqd's ``start_time``, 0 if that is unknown. "all" has the ids of a
part (``of``), which its task writes at its end, or of several, which the driver puts together; they are kept for
``dedupe_within``. "unsure" has those whose FIN may not have been executed, since a requeued message can come back
hours later; the driver writes them before it retires a batch. For parts without a file, the segments are read.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.records import DamagedRecord, RawMessage, encode_record, ids_of
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

_ALL, _UNSURE = "all", "unsure"
#: Seconds for which ids are kept whose FIN is unsure.
_UNSURE_KEPT = 7 * 86400.0
#: The driver puts so many files of one kind and period together, up to so many ids in one. A period is this share of
#: ``dedupe_within``.
_FILES, _IDS, _PERIOD = 16, 1_000_000, 1 / 8

#: The most ids that a process holds, of 8 bytes each.
_CACHED = 4_000_000


@dataclass(frozen=True, slots=True)
class _File:
    """The parsed name of a file of ids."""

    name: str
    kind: str
    first: int
    last: int
    count: int
    time: int
    start: int
    of: str


class _Found(NamedTuple):
    """The files and segments with ids of an nsqd."""

    #: The names of files and segments.
    names: list[str]
    #: The start_times under which they were staged.
    starts: set[int]
    #: Whether no other task adds to them.
    is_final: bool


class _Cache:
    """Ids by the name of their record, whose content never changes. Workers live for many batches."""

    def __init__(self) -> None:
        #: In the order of their last use.
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._count = 0

    def get(self, name: str) -> array[int] | None:
        found = self._ids.get(name)
        if found is not None:
            self._ids.move_to_end(name)
        return found

    def put(self, name: str, ids: array[int]) -> None:
        self._count += len(ids) - len(self._ids.pop(name, ()))
        self._ids[name] = ids
        while self._count > _CACHED and len(self._ids) > 1:
            self._count -= len(self._ids.popitem(last=False)[1])


_cache = _Cache()


class Known:
    """The messages of a part's nsqd that were staged before, as an executor sees them."""

    def __init__(self, log: StagingLog, part: Part, dedupe_within: float) -> None:
        self._log = log
        self._part = part
        self._within = dedupe_within
        #: Whether first deliveries may be copies.
        self._is_restarted = False
        #: The names of ids that were staged before this attempt began; None if other tasks may still stage some.
        self._before: list[str] | None = []
        #: The segments that this attempt has staged.
        self._own: list[str] = []

    def begin(self, start: int) -> None:
        """Note nsqd's start_time, after SUB and before the first message. Blocks on the store.

        :param start: 0 if it is unknown
        """
        if not self._within:
            return
        self._log.note_start(self._part, start)
        found = self._look()
        self._before = found.names if found.is_final else None
        self._is_restarted = not start or time.time() - start < self._within or bool(found.starts - {start})

    def staged(self, number: int, messages: Sequence[RawMessage]) -> None:
        """Note the segment that this attempt has staged just now, so that it need not be read."""
        name = f"{self._log.place(self._part)}/{number:06d}"
        _cache.put(name, _numbers([each[2] for each in messages]))
        self._own.append(name)

    def fresh(self, messages: Sequence[RawMessage], *, suspicious: bool = False) -> Sequence[RawMessage]:
        """The messages that are not copies. Blocks on the store if something must be looked up.

        :param suspicious: whether first deliveries may be copies of messages that were delivered again meanwhile
        """
        again = [each for each in messages if each[1] > 1]
        if not (again or suspicious or self._is_restarted):
            return messages
        before = self._before
        if again or suspicious or before is None:
            before = self._look().names
        copies = self._copies(messages if suspicious or self._is_restarted else again, [*before, *self._own])
        fresh: dict[bytes, RawMessage] = {}
        for message in messages:
            if message[2] not in copies:
                fresh.setdefault(message[2], message)
        return list(fresh.values())

    def _look(self) -> _Found:
        """Find the files and segments with ids of this nsqd."""
        log = self._log
        # Ids are written before a batch is retired. So the batches are read first: what is gone there is in the files.
        finished = log.committed()
        parts = [each for each in staged_parts(log.names()) if each.address == self._part.address]
        files = _files(log, self._part.address)
        ended = {each.of for each in files if each.kind == _ALL}
        names = [each.name for each in files]
        starts = {each.start for each in files if each.kind == _ALL}
        is_final = True
        for part in parts:
            if part.batch > finished and _of(part) not in ended:
                names += [f"{part.place}/{number:06d}" for number in part.records]
                starts |= part.starts
                is_final = is_final and part.place == log.place(self._part)
        return _Found(names, starts, is_final)

    def _copies(self, messages: Sequence[RawMessage], names: Iterable[str]) -> set[bytes]:
        """The ids of those messages that are in these files and segments."""
        wanted = _numbers([each[2] for each in messages])
        copies: set[bytes] = set()
        for name in names:
            file = _parsed(name)
            if not wanted or (file is not None and (file.last < wanted[0] or file.first > wanted[-1])):
                continue
            ids = _ids(self._log.store, name)
            if not ids or ids[-1] < wanted[0] or ids[0] > wanted[-1]:
                continue
            for number in wanted[bisect_left(wanted, ids[0]) : bisect_right(wanted, ids[-1])]:
                at = bisect_left(ids, number)
                if at < len(ids) and ids[at] == number:
                    copies.add(b"%016x" % number)
        return copies


def remember(log: StagingLog, part: StagedPart, at: float) -> None:
    """Write the ids of a part that is sealed, unless they are written.

    :param at: the time of day by the driver's clock
    """
    if _of(part) in {each.of for each in _files(log, part.address) if each.kind == _ALL}:
        return
    start = min(part.starts) if len(part.starts) == 1 else 0
    ids = _merged(_ids(log.store, f"{part.place}/{number:06d}") for number in part.records)
    _write(log, part.address, _ALL, ids, at, start, _of(part))


def remember_unsure(log: StagingLog, part: StagedPart, at: float) -> None:
    """Write the ids of a part's messages that may not have been finished. For the driver, before it retires a batch."""
    confirmed = read_confirmed(log.store, part)
    unsure = [number for number in part.records if number not in confirmed.segments]
    ids = _merged([*(_ids(log.store, f"{part.place}/{number:06d}") for number in unsure), _numbers(confirmed.failed)])
    _write(log, part.address, _UNSURE, ids, at, 0, _of(part))


def make_places(log: StagingLog, addresses: Iterable[str]) -> None:
    """Make the places for ids. For the driver."""
    for address in addresses:
        log.store.make(_place(log, address))


def tidy(log: StagingLog, dedupe_within: float) -> None:
    """Remove ids that are too old, and put small files together. For the driver."""
    now = time.time()
    groups: dict[tuple[str, str, int, int], list[_File]] = {}
    period = max(1.0, dedupe_within * _PERIOD)
    for name in log.store.list(f"{log.base}/ids"):
        file = _parsed(name)
        if file is None:
            continue
        if now - file.time > (dedupe_within if file.kind == _ALL else _UNSURE_KEPT):
            log.store.retire(name)
        elif file.count < _IDS:
            place = name.rpartition("/")[0]
            groups.setdefault((place, file.kind, file.start, int(file.time / period)), []).append(file)
    for (_, _, _, number), files in groups.items():
        is_over = (number + 1) * period < now - period
        if len(files) >= (2 if is_over else _FILES):
            _put_together(log.store, files)


def _put_together(store: Store, files: Sequence[_File]) -> None:
    chosen: list[_File] = []
    for file in sorted(files, key=lambda file: file.count):
        if sum(each.count for each in chosen) + file.count <= _IDS:
            chosen.append(file)
    if len(chosen) < 2:
        return
    ids = _merged(_ids(store, each.name) for each in chosen)
    place = chosen[0].name.rpartition("/")[0]
    at = max(each.time for each in chosen)
    # The ids of parts that are not finished are found in their segments.
    _create(store, place, chosen[0].kind, ids, at, chosen[0].start, uuid.uuid4().hex)
    for each in chosen:
        store.retire(each.name)


# -- files ----------------------------------------------------------------------------------------------


def _place(log: StagingLog, address: str) -> str:
    return f"{log.base}/ids/{quoted(address)}"


def _of(part: StagedPart) -> str:
    return f"{part.log}.{part.batch}.{part.split}"


def _files(log: StagingLog, address: str) -> list[_File]:
    parsed = map(_parsed, log.store.list(_place(log, address)))
    return [each for each in parsed if each is not None]


def _parsed(name: str) -> _File | None:
    """None for the name of a segment."""
    kind, _, rest = name.rpartition("/")[2].partition("-")
    if kind not in {_ALL, _UNSURE}:
        return None
    first, last, count, at, start, of = rest.split("-", 5)
    return _File(name, kind, int(first, 16), int(last, 16), int(count), int(at), int(start), of)


def _write(log: StagingLog, address: str, kind: str, ids: array[int], at: float, start: int, of: str) -> None:
    if ids:
        _create(log.store, _place(log, address), kind, ids, int(at), start, of)


def _create(store: Store, place: str, kind: str, ids: array[int], at: int, start: int, of: str) -> None:
    name = f"{place}/{kind}-{ids[0]:016x}-{ids[-1]:016x}-{len(ids)}-{at}-{start}-{of}"
    store.create(name, encode_record(_swapped(ids).tobytes()))


def _ids(store: Store, name: str) -> array[int]:
    """The ids in a segment or a file, sorted; none if it is gone meanwhile, or damaged."""
    found = _cache.get(name)
    if found is not None:
        return found
    try:
        record = read_record(store, name)
    except FileNotFoundError:
        return array("Q")
    except DamagedRecord as exc:
        logger.warning("%s: copies of its messages would not be recognized", exc)
        return array("Q")
    if _parsed(name) is not None:
        found = _swapped(array("Q", bytes(record.content)))
    else:
        found = _numbers(ids_of(record.content)) if record.end is None else array("Q")
    _cache.put(name, found)
    return found


# -- numbers --------------------------------------------------------------------------------------------


def _number(message_id: bytes) -> int | None:
    """An id as a number; None if it is not of nsqd's form, and is not remembered."""
    try:
        number = int(message_id, 16)
    except ValueError:
        return None
    return number if b"%016x" % number == message_id else None


def _numbers(ids: Collection[bytes]) -> array[int]:
    # All at once: this is on the way of each message.
    text = b"".join(ids)
    try:
        data = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        data = b""
    if len(data) != 8 * len(ids) or data.hex().encode() != text or set(map(len, ids)) != {16}:
        return array("Q", sorted(number for number in map(_number, ids) if number is not None))
    return array("Q", sorted(_swapped(array("Q", data))))


def _merged(parts: Iterable[array[int]]) -> array[int]:
    found: list[int] = []
    for each in parts:
        found += each
    found.sort()
    return array("Q", found)


def _swapped(ids: array[int]) -> array[int]:
    """In the stage, the most significant byte comes first."""
    if sys.byteorder == "little":
        ids = ids[:]
        ids.byteswap()
    return ids
