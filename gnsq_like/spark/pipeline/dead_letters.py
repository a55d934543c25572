"""What becomes of messages that do not fit: rows with their reason, and dead letters.

Runs on executors, over the few rows that were refused: a plain UDF, since pyspark's faster kinds want pandas. The
envelope is the one of ``gnsq_like.deadletter``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gnsq_like.deadletter import DeadLetter, pack_envelope
from gnsq_like.spark.pipeline.rejected import reason

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What :class:`Describe` gives, as Spark's DDL.
DDL = "reason STRING, letter BINARY"


class Describe:
    """For a UDF: the reason, and the dead letter, of one message.

    :param most_bytes: what the dead-letter topic takes; of a longer letter, the body is cut
    :param rejected: where the whole body is kept
    """

    def __init__(self, schema: StructType, most_bytes: int, rejected: str) -> None:
        self._schema = schema
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
            reason=reason(bytes(body), self._schema),
        )
        return letter.reason, fitted(letter, self._most_bytes, self._rejected)


def fitted(letter: DeadLetter, most_bytes: int, rejected: str) -> bytes:
    """The letter in its envelope, in ``most_bytes`` at most: the body may be cut, and the reason says so."""
    packed = pack_envelope(letter)
    size = len(letter.body)
    keep = size
    while len(packed) > most_bytes and keep:
        # An envelope can be several times as long as its body, but is never shorter.
        keep = min(keep // 2, most_bytes)
        why = f"{letter.reason} (the first {keep} of {size} bytes; the whole is in {rejected})"
        packed = pack_envelope(dataclasses.replace(letter, body=letter.body[:keep], reason=why))
    return packed
