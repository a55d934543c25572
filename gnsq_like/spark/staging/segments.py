"""Segments: messages as Arrow data. One segment is one record batch, in the stage and on its way to Spark.

The stage has only the columns that come from nsqd. Columns that are the same for a whole part (topic, channel, nsqd)
or follow from others are added when rows are made. So a replay has the columns that are asked for at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_like.spark.staging.offsets import Part

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


class Rows:
    """Makes rows from the segments of a part; their bodies are bytes.

    :param columns: the columns of the rows, in their order
    """

    def __init__(self, columns: Sequence[str], part: Part) -> None:
        #: The columns that are one value for the whole part.
        constants = {
            "topic": pa.scalar(part.of.topic),
            "channel": pa.scalar(part.of.channel),
            "nsqd_address": pa.scalar(part.address),
            "seen_at": pa.scalar(part.seen_us or None, _TIMESTAMP),
        }
        self._fields = [(name, _makers.get(name), constants.get(name)) for name in columns]
        #: Columns of one repeated value, by their name and length: most segments have the same length.
        self._repeated: dict[tuple[str, int], pa.Array] = {}

    def of(self, data: memoryview) -> pa.RecordBatch:
        """The rows of one segment."""
        staged = decode_segment(data)
        arrays = []
        for name, make, constant in self._fields:
            if make is not None:
                arrays.append(make(staged))
                continue
            key = (name, staged.num_rows)
            if key not in self._repeated:
                self._repeated = {each: array for each, array in self._repeated.items() if each[1] == key[1]}
                self._repeated[key] = pa.repeat(constant, staged.num_rows)
            arrays.append(self._repeated[key])
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in self._fields])


def _id(staged: pa.RecordBatch) -> pa.Array:
    # nsqd's ids are hexadecimal digits. Those of other servers may not be text, and must not be lost.
    column = staged.column("id")
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("latin-1") for each in column.to_pylist()], pa.string())


def _timestamp(staged: pa.RecordBatch) -> pa.Array:
    return pc.divide(staged.column("timestamp_ns"), 1000).view(_TIMESTAMP)


def _staged(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda staged: staged.column(name)


_makers: dict[str, Callable[[pa.RecordBatch], pa.Array]] = {
    "id": _id,
    "body": _staged("body"),
    "timestamp": _timestamp,
    "attempts": _staged("attempts"),
    "timestamp_ns": _staged("timestamp_ns"),
    "size": lambda staged: pc.binary_length(staged.column("body")),
}
