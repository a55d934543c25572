"""Records of a part in the stage: segments, END and confirmations, with a header that reveals damage.

The header has a checksum of all that follows it, and the number of messages in all segments of the part before this
one. So a record that was cut or changed is recognized, and the next one shows how many messages are lost.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import NamedTuple

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
