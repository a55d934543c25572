"""Records of a part in the stage (segments, END, confirmations), with a header that reveals damage; and the rows made
from segments (:func:`segment_rows`).

The header has a checksum of all that follows it, and the number of messages in all segments of the part before this
one. So a record that was cut or changed is recognized, and the next one shows how many messages are lost.

A segment is messages as one record batch of Arrow, with only the columns that come from nsqd. Rows have others, too,
that are the same for a whole part (topic, channel, nsqd) or follow from others. So a replay may ask for other columns
than the first run.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.store import StagingError

_MAGIC = b"NSQ1"
#: The magic, the CRC-32 of all that follows it, and the number of messages before.
_HEADER = struct.Struct("<4sIQ")
_CHECKED_FROM = 8
#: The beginning of an END record; neither Arrow data nor JSON begins like this.
_END = b"END "


class DamagedRecord(StagingError):
    """A record is not as it was written."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} is damaged"


class End(NamedTuple):
    """The END record of a part."""

    #: The number of segments of the part.
    segments: int
    #: The number of messages that were taken from nsqd, including those that were dropped as copies.
    taken: int
    #: Why it ended.
    reason: str


class Record(NamedTuple):
    """A record without its header."""

    content: memoryview
    #: The number of messages in all segments of the part before it.
    before: int
    #: The content of an END record.
    end: End | None


def encode_record(content: bytes | memoryview, before: int = 0) -> bytes:
    """Encode a segment or a confirmation.

    :param before: the number of messages in all segments of the part before it
    """
    checksum = zlib.crc32(content, zlib.crc32(before.to_bytes(8, "little")))
    return b"".join((_HEADER.pack(_MAGIC, checksum, before), content))


def encode_end(end: End, before: int = 0) -> bytes:
    """Encode an END record."""
    return encode_record(_END + json.dumps(end._asdict()).encode(), before)


def decode_record(data: memoryview, name: str) -> Record:
    """Decode a record.

    :param name: its name, for the error
    :raises DamagedRecord: it is not as it was written
    """
    if len(data) < _HEADER.size:
        raise DamagedRecord(name)
    magic, checksum, before = _HEADER.unpack_from(data)
    if magic != _MAGIC or zlib.crc32(data[_CHECKED_FROM:]) != checksum:
        raise DamagedRecord(name)
    content = data[_HEADER.size :]
    is_end = bytes(content[: len(_END)]) == _END
    return Record(content, before, End(**json.loads(bytes(content[len(_END) :]))) if is_end else None)


# -- segments -------------------------------------------------------------------------------------------

#: A message as the connection gives it: (timestamp in ns, attempts, id, body).
RawMessage = tuple[int, int, bytes, bytes]

_STAGED = pa.schema(
    [
        pa.field("timestamp_ns", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("id", pa.binary()),
        pa.field("body", pa.binary()),
    ]
)
_TIMESTAMP = pa.timestamp("us", tz="UTC")


def encode_segment(messages: Sequence[RawMessage]) -> memoryview:
    """Encode a segment."""
    columns = zip(*messages, strict=True) if messages else [()] * len(_STAGED)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _STAGED, strict=True)], schema=_STAGED
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _STAGED) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode_segment(data: memoryview) -> pa.RecordBatch:
    """The staged columns."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def ids_of(data: memoryview) -> list[bytes]:
    """The ids of a segment's messages."""
    ids: list[bytes] = decode_segment(data).column("id").to_pylist()
    return ids


def segment_rows(data: memoryview, columns: Sequence[str], part: Part) -> pa.RecordBatch:
    """The rows of a segment; their bodies are bytes.

    :param columns: the columns of the rows, in their order
    """
    staged = decode_segment(data)
    return pa.RecordBatch.from_pydict({name: _makers[name](staged, part) for name in columns})


def _id(staged: pa.RecordBatch, part: Part) -> pa.Array:
    # nsqd's ids are hexadecimal digits. Those of other servers may not be text, and must not be lost.
    column = staged.column("id")
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("latin-1") for each in column.to_pylist()], pa.string())


_makers: dict[str, Callable[[pa.RecordBatch, Part], pa.Array]] = {
    "id": _id,
    "body": lambda staged, part: staged.column("body"),
    "timestamp": lambda staged, part: pc.divide(staged.column("timestamp_ns"), 1000).view(_TIMESTAMP),
    "attempts": lambda staged, part: staged.column("attempts"),
    "topic": lambda staged, part: pa.repeat(part.of.topic, staged.num_rows),
    "channel": lambda staged, part: pa.repeat(part.of.channel, staged.num_rows),
    "nsqd_address": lambda staged, part: pa.repeat(part.address, staged.num_rows),
    "timestamp_ns": lambda staged, part: staged.column("timestamp_ns"),
    "seen_at": lambda staged, part: pa.repeat(pa.scalar(part.seen_us or None, _TIMESTAMP), staged.num_rows),
    "size": lambda staged, part: pc.binary_length(staged.column("body")),
}
