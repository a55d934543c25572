"""Frames, the units that nsqd sends (docs/internals 1.1).

A frame is int32 size (of everything after it), int32 type, payload. The payload of a message frame is
int64 timestamp in ns, uint16 attempts, a 16-byte id, and the body.

:class:`FrameDecoder` is on the path of every message, so it makes one pass over the received bytes and unpacks a
message's 34-byte header in one call; the inner loop does only what every message needs. Its cost is linear in the bytes
however they are split: the pieces of an incomplete frame are kept in a list and joined once, when the last byte
arrives. An invalid size is detected before anything is stored for it.

Rules for editors: bytes from the peer may cause ProtocolError and nothing else. Frames decoded before the fault
are still returned; the fault is then in ``error``, and the decoder refuses further input.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from gnsq_like.errors import ProtocolError

RESPONSE = 0
ERROR = 1
MESSAGE = 2

OK = b"OK"
HEARTBEAT = b"_heartbeat_"
CLOSE_WAIT = b"CLOSE_WAIT"

#: Default limit for one frame: far above nsqd's max-msg-size (1 MiB by default).
DEFAULT_MAX_FRAME_BYTES = 64 * 1024 * 1024

#: A message as it comes off the wire: (timestamp in ns since the epoch, attempts, id, body).
RawMessage = tuple[int, int, bytes, bytes]

_HEAD = struct.Struct(">ii")
_MESSAGE_HEAD = struct.Struct(">iiqH16s")


class Frame(NamedTuple):
    """A frame that is not a message."""

    type: int
    payload: bytes


class Messages(list[RawMessage]):
    """A run of messages, in order of arrival."""

    __slots__ = ()


#: One result of decoding.
Item = Messages | Frame


def encode_frame(frame_type: int, payload: bytes) -> bytes:
    """Encode a frame as nsqd does."""
    return _HEAD.pack(4 + len(payload), frame_type) + payload


def encode_message(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """Encode a message frame as nsqd does."""
    return _MESSAGE_HEAD.pack(30 + len(body), MESSAGE, timestamp_ns, attempts, message_id) + body


def encode_messages(messages: Iterable[RawMessage]) -> bytes:
    """Encode several message frames."""
    return b"".join([encode_message(*message) for message in messages])


#: nsqd's answer to a publish: what is decoded of it is always this object.
OK_ANSWER = Frame(RESPONSE, OK)
#: The same as it comes off the wire.
OK_FRAME = encode_frame(RESPONSE, OK)


#: First bytes of an HTTP response and of a TLS alert; read as a size, they always exceed the limit.
_OTHER_PROTOCOLS = {b"HTTP": "HTTP", b"\x15\x03": "TLS from the first byte"}
#: The beginning of nsqlookupd's E_BAD_PROTOCOL, whose frames have no type, read as one.
_NSQLOOKUPD = int.from_bytes(b"E_BA")
_WRONG_PORT = "the peer speaks {}; is this the port of nsqd's TCP protocol (4150)?"


class FrameDecoder:
    """Decodes a stream of frames.

    :param max_frame_bytes: the largest accepted size field
    """

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        #: Pieces of the incomplete frame.
        self._pieces: list[bytes] = []
        #: Bytes in ``_pieces``.
        self._held = 0
        #: Bytes needed before another frame can be decoded.
        self._needed = 8
        #: The fault that ended decoding, if any.
        self.error: ProtocolError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no frame is incomplete."""
        return not self._held

    @property
    def wants(self) -> int:
        """The bytes that are certainly of this frame: after it, the stream may change its encoding."""
        return self._needed - self._held

    def feed(self, data: bytes) -> list[Item]:
        """Decode all frames that ``data`` completes.

        :returns: runs of messages and other frames, in order; may be empty
        :raises ProtocolError: if an earlier call found a fault (see ``error``)
        """
        if self.error is not None:
            raise self.error
        if self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            data = b"".join(self._pieces)
        elif data == OK_FRAME * (count := len(data) // len(OK_FRAME)):
            return [OK_ANSWER] * count
        items: list[Item] = []
        unpack_message = _MESSAGE_HEAD.unpack_from
        limit = self._max_frame_bytes
        position = 0
        end = len(data)
        needed = 8
        while position + 8 <= end:
            if data.startswith(OK_FRAME, position):
                items.append(OK_ANSWER)
                position += 10
                continue
            run = Messages()
            start = position + 34  # of the body
            while start <= end:
                size, frame_type, timestamp, attempts, message_id = unpack_message(data, position)
                stop = position + 4 + size
                if frame_type != MESSAGE or size > limit or not start <= stop <= end:
                    break
                run.append((timestamp, attempts, message_id, data[start:stop]))
                position = stop
                start = stop + 34
            if run:
                items.append(run)
                continue
            size, frame_type = _HEAD.unpack_from(data, position)
            self.error = self._fault(size, frame_type)
            if self.error is not None:
                position = end
                break
            stop = position + 4 + size
            if stop > end:
                needed = stop - position
                break
            items.append(Frame(frame_type, data[position + 8 : stop]))
            position = stop
        if position < end or self._held:
            self._hold(data[position:], needed)
        return items

    def _hold(self, rest: bytes, needed: int) -> None:
        self._pieces = [rest]
        self._held = len(rest)
        self._needed = needed

    def _fault(self, size: int, frame_type: int) -> ProtocolError | None:
        if size < 4:
            return ProtocolError(f"invalid frame size {size}; the minimum is 4")
        if size > self._max_frame_bytes:
            for begin, protocol in _OTHER_PROTOCOLS.items():
                if size.to_bytes(4).startswith(begin):
                    return ProtocolError(_WRONG_PORT.format(protocol))
            return ProtocolError(f"frame of {size} bytes exceeds max_frame_bytes={self._max_frame_bytes}")
        if frame_type == _NSQLOOKUPD:
            return ProtocolError(_WRONG_PORT.format("nsqlookupd's TCP protocol"))
        if frame_type == MESSAGE and size < 30:
            return ProtocolError(f"invalid message frame size {size}; the minimum is 30")
        return None
