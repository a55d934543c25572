"""The log of staged messages of one query: its names in the store, and the rules for creating and removing them.

::

    <topic>/<channel>/
        log-<id>/
            log.json                            created with the plan of the first batch
            batch-<k>/plan.json                 written before Spark hears of the batch
            batch-<k>/<nsqd>/<split>/<j>        a segment of messages, or the END record
            batch-<k>/<nsqd>/<split>/confirmed-<token>   the segments whose FINs nsqd has executed for certain
            committed/<k>                       the watermark: Spark has finished all batches up to k
        index/<nsqd>/<kind>-<time>-<log>-<k>    ids that outlive their batch (``index``)

A part (the share of one task) consists of the segments 0, 1, 2, ... up to END. Segments and END compete for the same
numbers, and each number is given once. So all attempts of a task, even late ones, agree on one sequence, and nothing
can follow END. Rows come from published segments only, so every attempt and every replay gives the same rows.

A message is FINed once its segment is published and the watermark, read after that, is still below its batch. At the
end of a batch, the driver (1) seals parts that have no END, (2) keeps the ids whose FIN is unsure, (3) writes the
watermark, and (4) retires the batch. A late executor is stopped by END, by the missing place, or by the watermark.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from gnsq_like.spark.staging.offsets import Offset, Part, TopicChannel
from gnsq_like.spark.staging.store import Fenced, Store

#: The beginning of an END record; Arrow data never begins like this.
_END = b"END "
#: How many watermarks are kept. The highest one counts; the others are for listings that run at the same time.
_KEPT_WATERMARKS = 3

_BATCH = re.compile(r".*/log-[^/]+/batch-(\d{12})/")
_RECORD = re.compile(r"(.*/log-([^/]+)/batch-(\d{12})/([^/]+)/(\d+))/(\d+|confirmed-[^/]+)")


class End(NamedTuple):
    """The END record of a part."""

    #: The number of segments of the part.
    segments: int
    #: The number of messages that were taken from nsqd, including those that were dropped as copies.
    taken: int
    #: Why it ended.
    reason: str


class Confirmed(NamedTuple):
    """The FINs of a part that nsqd has executed for certain."""

    segments: frozenset[int]
    #: Ids of these segments that nsqd did not let it finish.
    failed: frozenset[bytes]


def base_of(topic: str, channel: str) -> str:
    """The prefix of all names of a topic and channel."""
    return f"{quote(topic, safe='')}/{quote(channel, safe='')}"


def quoted(address: str) -> str:
    """An nsqd's address as one part of a name."""
    return quote(address, safe="")


class StagingLog:
    """The log of one query.

    :param store: where it is
    :param base: ``base_of(topic, channel)``
    :param log_id: its id
    """

    def __init__(self, store: Store, base: str, log_id: str) -> None:
        self.store = store
        self.base = base
        self.id = log_id
        self._prefix = f"{base}/log-{log_id}"

    # -- the log itself ---------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the log, unless it exists. For the driver."""
        self.store.make(f"{self._prefix}/committed")
        self.store.create(f"{self._prefix}/log.json", json.dumps({"log": self.id}).encode())

    def exists(self) -> bool:
        """Whether the log was created, and is visible from here."""
        return self.store.exists(f"{self._prefix}/log.json")

    def committed(self) -> int:
        """The watermark: the last batch that Spark has finished; 0 for none."""
        names = self.store.list(f"{self._prefix}/committed")
        return max((int(name.rpartition("/")[2]) for name in names), default=0)

    # -- batches: the driver's side ---------------------------------------------------------------------

    def _batch(self, batch: int) -> str:
        return f"{self._prefix}/batch-{batch:012d}"

    def write_plan(self, offset: Offset) -> bool:
        """Write the plan of the next batch; False if a batch of this number has a plan already."""
        self.store.make(self._batch(offset.batch))
        return self.store.create(f"{self._batch(offset.batch)}/plan.json", json.dumps(offset.to_dict()).encode())

    def plan_of(self, batch: int) -> Offset | None:
        """The plan of a batch, if it has one."""
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
        """All names in the log."""
        return self.store.list(self._prefix)

    def batches(self) -> list[int]:
        """The batches that have any names, even if only from a late executor."""
        matches = map(_BATCH.match, self.names())
        return sorted({int(match[1]) for match in matches if match is not None})

    def batch_parts(self, batch: int) -> list[StagedPart]:
        """The parts of a batch, including planned ones that have no records."""
        found = {part.place: part for part in staged_parts(self.store.list(self._batch(batch)))}
        planned = self.plan_of(batch)
        for part in planned.parts() if planned is not None else []:
            place = self.place(part)
            found.setdefault(place, StagedPart(self.id, batch, part.address, part.split, (), (), place))
        return list(found.values())

    def end_of(self, part: StagedPart) -> End | None:
        """The END record of a part, if it has one."""
        if not part.records:
            return None
        data = self.store.read(f"{part.place}/{part.records[-1]:06d}")
        return _read_end(data) if is_end(data) else None

    def seal_staged(self, part: StagedPart) -> None:
        """Make sure that a part has its END: a task that Spark stopped, or never began, may not have written it."""
        if self.end_of(part) is not None:
            return
        number = part.records[-1] + 1 if part.records else 0
        with suppress(Fenced):  # without a place, no task can publish there
            while not self.store.create(f"{part.place}/{number:06d}", _end(number, 0, "left")):
                number += 1

    def write_watermark(self, batch: int) -> None:
        """Note that Spark has finished this batch and all before it."""
        self.store.create(f"{self._prefix}/committed/{batch:012d}", b"")
        for name in self.store.list(f"{self._prefix}/committed")[:-_KEPT_WATERMARKS]:
            self.store.retire(name)

    def retire(self, batch: int) -> None:
        """Remove a batch."""
        self.store.retire(self._batch(batch))

    # -- parts: the executors' side ---------------------------------------------------------------------

    def place(self, part: Part) -> str:
        """The prefix of a part's names."""
        return f"{self._batch(part.batch)}/{quoted(part.address)}/{part.split:04d}"

    def record(self, part: Part, number: int) -> memoryview | None:
        """A part's record of this number: a segment, or END if ``is_end`` is true for it."""
        try:
            return self.store.read(f"{self.place(part)}/{number:06d}")
        except FileNotFoundError:
            return None

    def publish(self, part: Part, number: int, data: bytes | memoryview) -> bool:
        """Publish a segment under this number; False if the number is taken.

        :raises Fenced: the batch is finished: none of its messages may be FINed
        """
        if not self.store.create(f"{self.place(part)}/{number:06d}", data):
            return False
        if self.committed() >= part.batch:
            raise Fenced(self.place(part))
        return True

    def seal(self, part: Part, number: int, taken: int, reason: str) -> bool:
        """Write END under this number; False if the number is taken. Raises Fenced."""
        return self.store.create(f"{self.place(part)}/{number:06d}", _end(number, taken, reason))

    def confirm(self, part: Part, segments: Iterable[int], failed: Iterable[bytes]) -> None:
        """Note that nsqd has executed the FINs of these segments, except for the failed ids."""
        record = {"segments": sorted(segments), "failed": [each.decode("latin-1") for each in failed]}
        self.store.create(f"{self.place(part)}/confirmed-{uuid.uuid4().hex}", json.dumps(record).encode())


class StagedPart(NamedTuple):
    """A part as it is in the store."""

    log: str
    batch: int
    address: str
    split: int
    #: The numbers of its records, segments and END.
    records: tuple[int, ...]
    #: The names of its confirmations.
    confirmations: tuple[str, ...]
    place: str


def staged_parts(names: Iterable[str]) -> list[StagedPart]:
    """The parts that these names of a store belong to."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        match = _RECORD.fullmatch(name)
        if match is not None:
            *part, last = match.groups()
            found.setdefault(tuple(part), []).append(last)
    return [
        StagedPart(
            log,
            int(batch),
            unquote(address),
            int(split),
            records=tuple(sorted(int(each) for each in names if each.isdigit())),
            confirmations=tuple(sorted(f"{place}/{each}" for each in names if not each.isdigit())),
            place=place,
        )
        for (place, log, batch, address, split), names in found.items()
    ]


def read_confirmed(store: Store, part: StagedPart) -> Confirmed:
    """The confirmations of all attempts of a part, taken together."""
    segments: set[int] = set()
    failed: set[bytes] = set()
    for name in part.confirmations:
        record: Mapping[str, Any] = json.loads(bytes(store.read(name)))
        segments.update(record["segments"])
        failed.update(each.encode("latin-1") for each in record["failed"])
    return Confirmed(frozenset(segments), frozenset(failed))


def unfinished_logs(store: Store, base: str) -> list[tuple[str, int]]:
    """The logs of this topic and channel that have staged batches that were never finished, with the first of these.

    Batches without records do not count: nsqd still has their messages.
    """
    first: dict[str, int] = {}
    for part in sorted(staged_parts(store.list(base))):
        if part.records and part.batch > StagingLog(store, base, part.log).committed():
            first.setdefault(part.log, part.batch)
    return sorted(first.items())


def owner_of(store: Store, log_id: str) -> TopicChannel | None:
    """The topic and the channel of a log, if the store has it. Lists everything."""
    for name in store.list(""):
        base, _, rest = name.removeprefix("./").partition(f"/log-{log_id}/")
        if rest == "log.json":
            topic, _, channel = base.partition("/")
            return TopicChannel(unquote(topic), unquote(channel))
    return None


def is_end(data: memoryview) -> bool:
    """Whether a record is END."""
    return bytes(data[: len(_END)]) == _END


def _end(segments: int, taken: int, reason: str) -> bytes:
    return _END + json.dumps({"segments": segments, "taken": taken, "reason": reason}).encode()


def _read_end(data: memoryview) -> End:
    """Decode an END record."""
    record = json.loads(bytes(data[len(_END) :]))
    return End(record["segments"], record["taken"], record["reason"])
