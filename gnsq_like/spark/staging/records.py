"""Records of a part in the stage: segments, END and confirmations, with a header that reveals damage.

The header has a checksum of all that follows it, and the number of messages in all segments of the part before this
one. So a record that was cut or changed is recognized, and the next one shows how many messages are lost.

Records that gnsq_like wrote before it had headers are read, too. Of these, only damage that Arrow or JSON finds is
known.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import NamedTuple

import pyarrow as pa

from gnsq_like.spark.staging.segments import decode_segment
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
    #: The number of messages in all segments of the part before it; None if it had no header.
    before: int | None
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
    before = None
    if bytes(data[: len(_MAGIC)]) == _MAGIC and len(data) >= _HEADER.size:
        _, checksum, before = _HEADER.unpack_from(data)
        if zlib.crc32(data[_CHECKED_FROM:]) != checksum:
            raise DamagedRecord(name)
        data = data[_HEADER.size :]
    try:
        if bytes(data[: len(_END)]) == _END:
            return Record(data, before, End(**json.loads(bytes(data[len(_END) :]))))
        if before is None:
            _check_old(data)
    except (pa.ArrowException, OSError, ValueError, TypeError, StopIteration) as exc:
        raise DamagedRecord(name) from exc
    return Record(data, before, None)


def _check_old(data: memoryview) -> None:
    """Raise an error for a segment or a confirmation without a header that cannot be read."""
    if bytes(data[:1]) == b"{":
        json.loads(bytes(data))
        return
    batch = decode_segment(data)
    batch.validate(full=True)
