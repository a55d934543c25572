"""Rejected messages as dead letters, which tasks publish, with the reason why each does not fit.

Letters have the envelope of ``gnsq_like.deadletter``. They are made from the files of rejected messages.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from gnsq_like.deadletter import DeadLetter, pack_envelope
from gnsq_like.spark.sink import Publishing, SinkOptions


class PublishingLetters:
    """The work of one task (``tasks.Work``), on rows of the table of rejected messages.

    :param rejected: the place of that table, which has the whole body
    """

    def __init__(self, options: SinkOptions, rejected: str) -> None:
        self._publishing = Publishing(options)
        #: The size limit of the dead-letter topic; longer letters have their body cut.
        self._most_bytes = options.longest_body
        self._rejected = rejected

    def add(self, batch: pa.RecordBatch) -> None:
        """Publish the letters of some messages. May switch."""
        times = {name: batch.column(name).cast(pa.int64()).to_pylist() for name in ("timestamp", "seen_at")}
        letters = [
            DeadLetter(
                topic=row["topic"],
                channel=row["channel"],
                nsqd_address=row["nsqd_address"],
                id=row["id"],
                attempts=row["attempts"],
                timestamp_ns=published * 1000,
                given_up_ns=seen * 1000,
                body=row["body"],
                reason=row["reason"],
            )
            for row, published, seen in zip(batch.to_pylist(), times["timestamp"], times["seen_at"], strict=True)
        ]
        packed = [pack_within(self._most_bytes, each, self._rejected) for each in letters]
        self._publishing.add(pa.RecordBatch.from_pydict({"body": pa.array(packed, pa.binary())}))

    def close(self) -> int:
        """Return how many were published."""
        return self._publishing.close()

    def drop(self) -> None:
        """Close the connections."""
        self._publishing.drop()


def pack_within(most_bytes: int, letter: DeadLetter, rejected: str) -> bytes:
    """Pack a letter into at most ``most_bytes``. The body is cut if necessary, and the reason says so then."""
    packed = pack_envelope(letter)
    size = len(letter.body)
    keep = size
    while len(packed) > most_bytes and keep:
        # An envelope can be several times as long as its body, but never shorter.
        keep = min(keep // 2, most_bytes)
        why = f"{letter.reason} (the first {keep} of {size} bytes; the whole is in {rejected})"
        packed = pack_envelope(dataclasses.replace(letter, body=letter.body[:keep], reason=why))
    return packed
