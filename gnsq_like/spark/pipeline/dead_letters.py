"""Rejected messages as dead letters, with the reason why each does not fit.

This runs on executors, for the few rejected rows: in a plain UDF, since pyspark's faster kinds need pandas. Letters
have the envelope of ``gnsq_like.deadletter``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gnsq_like.deadletter import DeadLetter, pack_envelope
from gnsq_like.spark.pipeline.rejected import reason_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The result of :class:`DescribeRejected`, as Spark's DDL.
DDL = "reason STRING, letter BINARY"


class DescribeRejected:
    """A function for a UDF: returns the reason and the dead letter of one message.

    :param most_bytes: the size limit of the dead-letter topic; longer letters have their body cut
    :param rejected: where the whole body is kept
    :param unit: the unit of a TIMESTAMP that is a number
    """

    def __init__(self, schema: StructType, most_bytes: int, rejected: str, unit: str = "s") -> None:
        self._schema = schema
        self._unit = unit
        self._most_bytes = most_bytes
        self._rejected = rejected

    def __call__(
        self,
        message_id: str,
        body: bytes,
        timestamp_us: int,
        attempts: int,
        topic: str,
        channel: str,
        nsqd_address: str,
        seen_us: int,
    ) -> tuple[str, bytes]:
        letter = DeadLetter(
            topic=topic,
            channel=channel,
            nsqd_address=nsqd_address,
            id=message_id,
            attempts=attempts,
            timestamp_ns=timestamp_us * 1000,
            given_up_ns=seen_us * 1000,
            body=bytes(body),
            reason=reason_for(bytes(body), self._schema, self._unit),
        )
        return letter.reason, pack_within(self._most_bytes, letter, self._rejected)


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
