"""The log of staged messages of one query: its names in the store, the rules for creating and removing them, and how to
find logs that others have left unfinished.

::

    <topic>/<channel>/
        log-<id>/
            log.json                            created with the plan of the first batch
            batch-<k>/plan.json                 written before Spark hears of the batch
            batch-<k>/<nsqd>/<split>/<j>        a segment of messages, or the END record
            batch-<k>/<nsqd>/<split>/confirmed-<token>   the records of the part, and the segments whose FINs nsqd has
                                                executed for certain
            batch-<k>/<nsqd>/<split>/started-<time>      the start_time of the nsqd that an attempt receives from
            committed/<k>                       the watermark: Spark has finished all batches up to k
        ids/<nsqd>/<kind>-...                   ids of staged messages (``index.py``)

A part (the share of one task) consists of the segments 0, 1, 2, ... up to END. A segment or END takes the next
number; whoever creates it first has it. So all attempts of a task, even late ones, agree on one sequence, and nothing
can follow END. Rows come from published segments only, so every attempt and every replay gives the same rows.

Numbers are given in order. So if one is absent below one that exists, it was lost, not left unwritten (``examine``).

A message is FINed once its segment is published and the watermark, read after that, is still below its batch. At the
end of a batch, the driver (1) seals parts that have no END, (2) keeps their ids, (3) writes the watermark, and (4)
retires the batch. A late executor is stopped by END, by the missing place, or by the watermark.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from gnsq_like.runtime.files import inside
from gnsq_like.spark.staging.offsets import NOT_WRITTEN, Offset, Part
from gnsq_like.spark.staging.records import (
    DamagedRecord,
    End,
    Record,
    decode_record,
    decode_segment,
    encode_end,
    encode_record,
    encode_segment,
)
from gnsq_like.spark.staging.store import Fenced, Store

logger = logging.getLogger(__name__)

#: How many watermarks are kept. The highest one counts; the others are for listings that run at the same time.
_KEPT_WATERMARKS = 3

_STARTED = "started-"
_BATCH = re.compile(r".*/log-[^/]+/batch-(\d{12})/")
_RECORD = re.compile(r"(.*/log-([^/]+)/batch-(\d{12})/([^/]+)/(\d+))/(\d+|confirmed-[^/]+|started-\d+)")


class Confirmed(NamedTuple):
    """The FINs of a part that nsqd has executed for certain."""

    segments: frozenset[int]
    #: Ids of these segments that nsqd did not let it finish.
    failed: frozenset[bytes]
    #: How many records the part had, with END, and how many messages were in them; 0 if that was not noted.
    records: int
    messages: int


def base_of(topic: str, channel: str) -> str:
    """The prefix of all names of a topic and channel."""
    return f"{inside(quote(topic, safe=''))}/{inside(quote(channel, safe=''))}"


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
        """The plan of a batch, if it has one. Raises DamagedRecord."""
        name = f"{self._batch(batch)}/plan.json"
        try:
            return Offset.from_dict(json.loads(bytes(self.store.read(name))))
        except FileNotFoundError:
            return None
        except NOT_WRITTEN as exc:
            raise DamagedRecord(name) from exc

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
        names = self.store.list(self._batch(batch))
        try:
            planned = self.plan_of(batch)
        except DamagedRecord:
            planned = None
        found = {part.place: part for part in staged_parts(names)}
        for part in planned.parts() if planned is not None else []:
            found.setdefault(self.place(part), self._staged(part, []))
        return list(found.values())

    def end_of(self, part: StagedPart) -> End | None:
        """The END record of a part, if it has one."""
        if not part.records:
            return None
        try:
            return read_record(self.store, f"{part.place}/{part.records[-1]:06d}").end
        except DamagedRecord:
            return None

    def seal_staged(self, part: StagedPart) -> End:
        """Make sure that a part has its END: a task that Spark stopped, or never began, may not have written it."""
        found = self.end_of(part)
        if found is not None:
            return found
        number = part.records[-1] + 1 if part.records else 0
        with suppress(Fenced):  # without a place, no task can publish there
            while not self.store.create(f"{part.place}/{number:06d}", encode_end(End(number, 0, "left"))):
                number += 1
        return End(number, 0, "left")

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

    def staged(self, part: Part) -> StagedPart:
        """A part as it is in the store."""
        return self._staged(part, self.store.list(self.place(part)))

    def _staged(self, part: Part, names: Iterable[str]) -> StagedPart:
        place = self.place(part)
        found = {each.place: each for each in staged_parts(names)}
        return found.get(place) or StagedPart(self.id, part.batch, part.address, part.split, (), (), frozenset(), place)

    def record(self, part: Part, number: int) -> Record | None:
        """A part's segment or END of this number. Raises DamagedRecord."""
        try:
            return read_record(self.store, f"{self.place(part)}/{number:06d}")
        except FileNotFoundError:
            return None

    def publish(self, part: Part, number: int, segment: bytes | memoryview, before: int) -> bool:
        """Publish a segment under this number; False if the number is taken.

        :param before: the number of messages in the segments before it
        :raises Fenced: the batch is finished: none of its messages may be FINed
        """
        if not self.store.create(f"{self.place(part)}/{number:06d}", encode_record(segment, before)):
            return False
        if self.committed() >= part.batch:
            raise Fenced(self.place(part))
        return True

    def seal(self, part: Part, end: End, before: int) -> bool:
        """Write END after ``end.segments`` segments; False if that number is taken. Raises Fenced."""
        return self.store.create(f"{self.place(part)}/{end.segments:06d}", encode_end(end, before))

    def note_start(self, part: Part, start: int) -> None:
        """Note the start_time of nsqd under which an attempt takes messages; 0 for unknown. Raises Fenced."""
        self.store.create(f"{self.place(part)}/{_STARTED}{start}", b"")

    def confirm(self, part: Part, confirmed: Confirmed) -> None:
        """Note the records and FINs of an attempt."""
        record = confirmed._asdict() | {
            "segments": sorted(confirmed.segments),
            "failed": [each.decode("latin-1") for each in confirmed.failed],
        }
        self.store.create(
            f"{self.place(part)}/confirmed-{uuid.uuid4().hex}", encode_record(json.dumps(record).encode())
        )


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
    #: The start_times of nsqd that its attempts have noted, 0 for one that is unknown.
    starts: frozenset[int]
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
            confirmations=tuple(sorted(f"{place}/{each}" for each in names if each.startswith("confirmed-"))),
            starts=frozenset(int(each.removeprefix(_STARTED)) for each in names if each.startswith(_STARTED)),
            place=place,
        )
        for (place, log, batch, address, split), names in found.items()
    ]


def read_record(store: Store, name: str) -> Record:
    """A record; raises FileNotFoundError, DamagedRecord."""
    return decode_record(store.read(name), name)


def read_confirmed(store: Store, part: StagedPart) -> Confirmed:
    """The confirmations of all attempts of a part, taken together.

    Without one that is gone or damaged, more FINs are unsure, which does no harm.
    """
    segments: set[int] = set()
    failed: set[bytes] = set()
    records = messages = 0
    for name in part.confirmations:
        try:
            found: Mapping[str, Any] = json.loads(bytes(read_record(store, name).content))
        except (FileNotFoundError, DamagedRecord) as exc:
            logger.warning("a confirmation of the stage cannot be read: %s", exc)
            continue
        segments.update(found["segments"])
        failed.update(each.encode("latin-1") for each in found["failed"])
        if found.get("records", 0) > records:
            records, messages = found["records"], found["messages"]
    return Confirmed(frozenset(segments), frozenset(failed), records, messages)


def unfinished_logs(store: Store, base: str) -> list[tuple[str, int]]:
    """The logs of this topic and channel that have staged batches that were never finished, with the first of these.

    Batches without records do not count: nsqd still has their messages.
    """
    first: dict[str, int] = {}
    for part in sorted(staged_parts(store.list(base))):
        if part.records and part.batch > StagingLog(store, base, part.log).committed():
            first.setdefault(part.log, part.batch)
    return sorted(first.items())


# -- records that are missing ---------------------------------------------------------------------------
#
# These must be there: each number below one that exists, since numbers are given in order; the segments that END
# counts; and the records that a confirmation counts, which is written after END. So only one loss goes unnoticed: that
# of the last records of a part without a confirmation. Such a part looks like one that is not complete.


class PartState(NamedTuple):
    """The records of a part in the stage."""

    #: The numbers of the segments that can be read, the messages in them, and the bytes of their bodies.
    segments: tuple[int, ...]
    messages: int
    bytes: int
    #: The number of the record that comes next.
    following: int
    is_sealed: bool
    #: The numbers of records that are gone or damaged.
    missing: tuple[int, ...]
    #: The records that are gone or damaged, and the number of messages in them, as a sentence; "" for none.
    damage: str


def examine(log: StagingLog, part: Part) -> PartState:
    """Read all records of a part. Raises Fenced if its batch is finished, and records are gone."""
    staged = log.staged(part)
    confirmed = read_confirmed(log.store, staged)
    following = max(confirmed.records, staged.records[-1] + 1 if staged.records else 0)
    segments, messages, size, is_sealed = [], 0, 0, False
    missing: dict[int, str] = {}
    #: The number of lost messages, and whether it is exact, which the next record says.
    lost, is_exact, most = 0, True, part.messages
    for number in range(following):
        try:
            record = log.record(part, number)
        except DamagedRecord as exc:
            record = None
            missing[number] = str(exc)
        else:
            if record is None:
                missing[number] = f"{staged.place}/{number:06d} is gone"
        if record is None:
            is_exact = False
            continue
        lost, is_exact = record.before - messages, True
        if record.end is not None:
            is_sealed, most = True, record.end.taken
            break
        rows = decode_segment(record.content)
        segments.append(number)
        messages += rows.num_rows
        size += rows.column("body").nbytes
    if missing and log.committed() >= part.batch:
        raise Fenced(staged.place)
    if not is_exact and confirmed.records == following:
        lost, is_exact = confirmed.messages - messages, True
    count = str(lost) if is_exact else f"up to {max(0, most - messages)}"
    damage = f"batch {part.batch}: {', '.join(missing.values())}; {count} of its messages are lost" if missing else ""
    return PartState(tuple(segments), messages, size, following, is_sealed, tuple(missing), damage)


def mend_part(log: StagingLog, part: Part) -> None:
    """Seal a part with missing records: it keeps its intact records, and takes no further messages."""
    state = examine(log, part)
    for number in state.missing:
        name = f"{log.place(part)}/{number:06d}"
        log.store.retire(name)
        log.store.create(name, encode_record(encode_segment([])))
    if not state.is_sealed:
        log.seal(part, End(state.following, state.messages, "mended"), state.messages)
