"""The log of staged messages of one query: its names in the store, and the rules by which they come and go.

::

    <topic>/<channel>/
        log-<id>/
            log.json                            there once the first batch was planned
            batch-<k>/plan.json                 written before Spark hears of the batch
            batch-<k>/<nsqd>/<split>/<j>        a segment of messages, or the END record
            batch-<k>/<nsqd>/<split>/confirmed-<token>   which segments' FINs nsqd has surely executed
            committed/<k>                       the watermark: Spark has finished all batches up to k
        index/<nsqd>/<kind>-<time>-<log>-<k>    ids that outlive their batch (``index``)

A part (one task's share) is the segments 0, 1, 2, ... up to END. Segments and END compete for the same numbers, and
a number is given once: so all attempts of a task, the late ones too, agree on one sequence, and nothing can come
after END. Rows are made of published segments only, hence every attempt and every replay gives the same rows.

A message is FINed when its segment is published and the watermark then read is still below its batch. At the
end of a batch the driver 1. seals parts that nobody sealed, 2. keeps the ids whose FIN is unsure, 3. writes the
watermark, 4. retires the batch. A late executor is stopped by END, or by the missing place, or by the watermark.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from gnsq_like.spark.staging.errors import Fenced
from gnsq_like.spark.staging.offsets import Offset, Part
from gnsq_like.spark.staging.store import Store

#: How the END record begins; Arrow data never does.
_END = b"END "
#: Watermarks that are kept: the highest counts, the others are there for those who list just then.
_KEPT_WATERMARKS = 3

_BATCH = re.compile(r"(.*/log-([^/]+))/batch-(\d{12})/")


class End(NamedTuple):
    """The END record of a part."""

    #: How many segments the part has.
    segments: int
    #: How many messages were taken from nsqd for it, those that were dropped as known included.
    taken: int
    #: Why it ended.
    reason: str


class Confirmed(NamedTuple):
    """What one attempt knows about its FINs."""

    segments: frozenset[int]
    #: Ids of these segments that nsqd did not let it finish.
    failed: frozenset[bytes]


def base_of(topic: str, channel: str) -> str:
    """The names' prefix for a topic and channel."""
    return f"{quote(topic, safe='')}/{quote(channel, safe='')}"


def quoted(address: str) -> str:
    """An nsqd's address as one part of a name."""
    return quote(address, safe="")


class StagingLog:
    """One query's log.

    :param store: where it is
    :param base: ``base_of(topic, channel)``
    :param log_id: which
    """

    def __init__(self, store: Store, base: str, log_id: str) -> None:
        self.store = store
        self.base = base
        self.id = log_id
        self._prefix = f"{base}/log-{log_id}"

    def __repr__(self) -> str:
        return f"<Log {self._prefix}>"

    # -- the log itself ---------------------------------------------------------------------------------

    def create(self) -> None:
        """Make it; fine if it is there. For the driver."""
        self.store.make(f"{self._prefix}/committed")
        self.store.create(f"{self._prefix}/log.json", json.dumps({"log": self.id}).encode())

    def exists(self) -> bool:
        """Whether it was created, and is seen from here."""
        return self.store.exists(f"{self._prefix}/log.json")

    def committed(self) -> int:
        """The watermark: the last batch that Spark has finished; 0 for none."""
        names = self.store.list(f"{self._prefix}/committed")
        return max((int(name.rpartition("/")[2]) for name in names), default=0)

    # -- batches: the driver's side ---------------------------------------------------------------------

    def _batch(self, batch: int) -> str:
        return f"{self._prefix}/batch-{batch:012d}"

    def write_plan(self, offset: Offset) -> bool:
        """Note the batch that is about to be handed to Spark; False if one of its number is noted."""
        self.store.make(self._batch(offset.batch))
        return self.store.create(f"{self._batch(offset.batch)}/plan.json", json.dumps(offset.to_dict()).encode())

    def plan_of(self, batch: int) -> Offset | None:
        """The batch's plan, if one was made."""
        try:
            data = self.store.read(f"{self._batch(batch)}/plan.json")
        except FileNotFoundError:
            return None
        return Offset.from_dict(json.loads(bytes(data)))

    def make_parts(self, parts: Iterable[Part]) -> None:
        """Make the places for the parts' segments."""
        for part in parts:
            self.store.make(self.place(part))

    def names(self) -> list[str]:
        """All names of the log."""
        return self.store.list(self._prefix)

    def batches(self) -> list[int]:
        """The batches of which something is there, if only what a late executor left."""
        matches = map(_BATCH.match, self.names())
        return sorted({int(match[3]) for match in matches if match is not None})

    def batch_names(self, batch: int) -> list[str]:
        """All names of a batch."""
        return self.store.list(self._batch(batch))

    def batch_parts(self, batch: int) -> list[StagedPart]:
        """The batch's parts, those that were planned and have no record included."""
        found = {part.place: part for part in staged_parts(self.batch_names(batch))}
        planned = self.plan_of(batch)
        for part in planned.parts() if planned is not None else []:
            place = self.place(part)
            found.setdefault(place, StagedPart(self.id, batch, part.address, part.split, (), (), place))
        return list(found.values())

    def end_of(self, part: StagedPart) -> End | None:
        """The part's END record, if it has one."""
        if not part.records:
            return None
        data = self.store.read(f"{part.place}/{part.records[-1]:06d}")
        return _read_end(data) if is_end(data) else None

    def seal_staged(self, part: StagedPart) -> None:
        """Make sure that the part has its END: a task that was not read to its end, or never begun, left it without."""
        if self.end_of(part) is not None:
            return
        number = part.records[-1] + 1 if part.records else 0
        with suppress(Fenced):  # it has no place: nobody can publish there
            while not self.store.create(f"{part.place}/{number:06d}", _end(number, 0, "left")):
                number += 1

    def write_watermark(self, batch: int) -> None:
        """Spark has finished this batch and all before it."""
        self.store.create(f"{self._prefix}/committed/{batch:012d}", b"")
        for name in self.store.list(f"{self._prefix}/committed")[:-_KEPT_WATERMARKS]:
            self.store.retire(name)

    def retire(self, batch: int) -> None:
        """Remove the batch."""
        self.store.retire(self._batch(batch))

    # -- parts: what executors see ----------------------------------------------------------------------

    def place(self, part: Part) -> str:
        """The prefix of the part's names."""
        return f"{self._batch(part.batch)}/{quoted(part.address)}/{part.split:04d}"

    def record(self, part: Part, number: int) -> memoryview | None:
        """The part's record of this number, a segment or END (``is_end`` tells)."""
        try:
            return self.store.read(f"{self.place(part)}/{number:06d}")
        except FileNotFoundError:
            return None

    def publish(self, part: Part, number: int, data: bytes | memoryview) -> bool:
        """Make these messages the part's segment of this number; False if the number is taken.

        :raises Fenced: the batch is finished: nothing of it may be FINed
        """
        if not self.store.create(f"{self.place(part)}/{number:06d}", data):
            return False
        self.check_fence(part)
        return True

    def check_fence(self, part: Part) -> None:
        """Raises Fenced if the part's batch is finished."""
        if self.committed() >= part.batch:
            raise Fenced(self.place(part))

    def seal(self, part: Part, number: int, taken: int, reason: str) -> bool:
        """Make END the record of this number; False if the number is taken. Raises Fenced."""
        return self.store.create(f"{self.place(part)}/{number:06d}", _end(number, taken, reason))

    def confirm(self, part: Part, segments: Iterable[int], failed: Iterable[bytes]) -> None:
        """Note that nsqd has executed the FINs of these segments, but for the failed ids."""
        record = {"segments": sorted(segments), "failed": [each.decode("latin-1") for each in failed]}
        self.store.create(f"{self.place(part)}/confirmed-{uuid.uuid4().hex}", json.dumps(record).encode())


class StagedPart(NamedTuple):
    """A part as it lies in the store."""

    log: str
    batch: int
    address: str
    split: int
    #: Numbers of its records, segments and END.
    records: tuple[int, ...]
    #: Names of its confirmations.
    confirmations: tuple[str, ...]
    place: str


def staged_parts(names: Iterable[str]) -> list[StagedPart]:
    """The parts among a store's names."""
    found: dict[str, tuple[list[int], list[str]]] = {}
    for name in names:
        place, _, last = name.rpartition("/")
        head = _BATCH.fullmatch(place.rsplit("/", 2)[0] + "/") if place.count("/") >= 2 else None
        if head is None:
            continue
        records, confirmations = found.setdefault(place, ([], []))
        if last.isdigit():
            records.append(int(last))
        elif last.startswith("confirmed-"):
            confirmations.append(name)
    return [_staged_part(place, *content) for place, content in found.items()]


def _staged_part(place: str, records: list[int], confirmations: list[str]) -> StagedPart:
    head, address, split = place.rsplit("/", 2)
    match = _BATCH.fullmatch(head + "/")
    assert match is not None  # staged_parts looked
    return StagedPart(
        match[2],
        int(match[3]),
        unquote(address),
        int(split),
        tuple(sorted(records)),
        tuple(sorted(confirmations)),
        place,
    )


def read_confirmed(store: Store, part: StagedPart) -> Confirmed:
    """What all attempts of a part have confirmed, taken together."""
    segments: set[int] = set()
    failed: set[bytes] = set()
    for name in part.confirmations:
        record: Mapping[str, Any] = json.loads(bytes(store.read(name)))
        segments.update(record["segments"])
        failed.update(each.encode("latin-1") for each in record["failed"])
    return Confirmed(frozenset(segments), frozenset(failed))


def unfinished_logs(store: Store, base: str) -> list[tuple[str, int]]:
    """Logs of this topic and channel with staged batches that were never finished, and the first such of each.

    A batch that was only planned has nothing that nsqd has not.
    """
    first: dict[str, int] = {}
    for part in sorted(staged_parts(store.list(base))):
        if part.records and part.batch > StagingLog(store, base, part.log).committed():
            first.setdefault(part.log, part.batch)
    return sorted(first.items())


def is_end(data: memoryview) -> bool:
    """Whether a record is END."""
    return bytes(data[: len(_END)]) == _END


def _end(segments: int, taken: int, reason: str) -> bytes:
    return _END + json.dumps({"segments": segments, "taken": taken, "reason": reason}).encode()


def _read_end(data: memoryview) -> End:
    """An END record's content."""
    record = json.loads(bytes(data[len(_END) :]))
    return End(record["segments"], record["taken"], record["reason"])
