"""The records of a part in the stage, and those that are missing.

These must be there: each number below one that exists, since numbers are given in order; the segments that END counts;
and the records that a confirmation counts, which is written after END. So only one loss goes unnoticed: that of the
last records of a part without a confirmation. Such a part looks like one that is not complete.
"""

from __future__ import annotations

from typing import NamedTuple

from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.records import DamagedRecord, End, decode_segment, encode_record, encode_segment
from gnsq_like.spark.staging.staging_log import StagingLog, read_confirmed
from gnsq_like.spark.staging.store import Fenced


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


def mend(log: StagingLog, part: Part) -> None:
    """Seal a part with missing records: it keeps its intact records, and takes no further messages."""
    state = examine(log, part)
    for number in state.missing:
        name = f"{log.place(part)}/{number:06d}"
        log.store.retire(name)
        log.store.create(name, encode_record(encode_segment([])))
    if not state.is_sealed:
        log.seal(part, End(state.following, state.messages, "mended"), state.messages)
