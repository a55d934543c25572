"""Frames: what nsqd sends (docs/internals 1.1).

A frame is int32 size (of all that follows), int32 type, payload. The payload of a message frame is
int64 timestamp in ns, uint16 attempts, a 16-byte id, and the body.

:class:`FrameDecoder` is on the path of every message, so it makes one pass over what was received and
takes a message's whole 34-byte head with one unpack. It stays linear in the bytes however they are
split: a frame that is not complete yet is kept as a list of pieces and joined once, when its last byte
is there. A size that cannot be is seen before anything is kept for it.

Rules for editors: bytes from the peer may cause ProtocolError and nothing else. What was cut before
the fault is still handed up; the fault is then in ``error``, and the decoder refuses to go on.
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

#: The bound on one frame unless the user sets another: far above nsqd's max-msg-size (1 MiB by default).
DEFAULT_MAX_FRAME_BYTES = 64 * 1024 * 1024

#: A message as it comes off the wire: (timestamp in ns since the epoch, attempts, id, body).
RawMessage = tuple[int, int, bytes, bytes]

_HEAD = struct.Struct(">ii")
_MESSAGE_HEAD = struct.Struct(">iiqH16s")
_MESSAGE_META = struct.Struct(">qH16s")


class Frame(NamedTuple):
    """A frame that is not a message."""

    type: int
    payload: bytes


#: One item of a pass: a run of messages that followed each other, or a frame of another type.
Item = list[RawMessage] | Frame


def encode_frame(frame_type: int, payload: bytes) -> bytes:
    """A frame as nsqd writes it."""
    return _HEAD.pack(4 + len(payload), frame_type) + payload


def encode_message(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """A message frame as nsqd writes it."""
    return _MESSAGE_HEAD.pack(30 + len(body), MESSAGE, timestamp_ns, attempts, message_id) + body


def encode_messages(messages: Iterable[RawMessage]) -> bytes:
    """Message frames, one after the other."""
    return b"".join([encode_message(*message) for message in messages])


_OK = Frame(RESPONSE, OK)
_OK_FRAME = encode_frame(RESPONSE, OK)


#: How others begin to answer, which read as a size is always too much: HTTP, and an alert of TLS.
_OTHER_PROTOCOLS = {b"HTTP": "HTTP", b"\x15\x03": "TLS from the first byte"}


class FrameDecoder:
    """Cuts what nsqd sends into frames.

    :param max_frame_bytes: the largest size field that is accepted
    """

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        #: Pieces of the one frame that is not complete.
        self._pieces: list[bytes] = []
        #: Bytes in ``_pieces``.
        self._held = 0
        #: Bytes that must be there before another pass can cut anything.
        self._needed = 8
        #: The fault that ended decoding, if one did.
        self.error: ProtocolError | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes received that belong to a frame not complete yet."""
        return self._held

    def take_rest(self) -> bytes:
        """Give up the bytes that were not cut, for whoever reads the stream from here on (an upgrade)."""
        rest = b"".join(self._pieces)
        self._hold(b"", 8)
        return rest

    def feed(self, data: bytes) -> list[Item]:
        """Cut all frames that ``data`` completes.

        :returns: in their order, runs of messages and other frames; may be empty
        :raises ProtocolError: when an earlier call found the fault that is in ``error``
        """
        if self.error is not None:
            raise self.error
        if self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return []
            data = b"".join(self._pieces)
        return self._cut(data)

    def feed_one(self, data: bytes) -> Frame | None:
        """Cut one frame, of whatever type, and hold what follows it: the stream may go on in another form.

        :returns: None if no frame is complete, or for a fault, which is then in ``error``
        """
        if self.error is not None:
            raise self.error
        if data:
            self._pieces.append(data)
            self._held += len(data)
        if self._held < self._needed:
            return None
        data = b"".join(self._pieces)
        size, frame_type = _HEAD.unpack_from(data)
        self.error = self._fault(size, frame_type)
        stop = 4 + size
        if self.error is not None or len(data) < stop:
            self._hold(data, max(8, stop))
            return None
        self._hold(data[stop:], 8)
        return Frame(frame_type, data[8:stop])

    def _hold(self, rest: bytes, needed: int) -> None:
        self._pieces = [rest] if rest else []
        self._held = len(rest)
        self._needed = needed

    def _cut(self, data: bytes) -> list[Item]:
        items: list[Item] = []
        run: list[RawMessage] = []
        unpack_message = _MESSAGE_HEAD.unpack_from
        unpack_head = _HEAD.unpack_from
        limit = self._max_frame_bytes
        position = 0
        end = len(data)
        needed = 8
        while position + 8 <= end:
            if position + 34 <= end:
                size, frame_type, timestamp, attempts, message_id = unpack_message(data, position)
                if frame_type == MESSAGE and 30 <= size <= limit:
                    stop = position + 4 + size
                    if stop > end:
                        needed = stop - position
                        break
                    run.append((timestamp, attempts, message_id, data[position + 34 : stop]))
                    position = stop
                    continue
            else:
                size, frame_type = unpack_head(data, position)
            if size == 6 and data.startswith(_OK_FRAME, position):
                # A producer's every answer.
                if run:
                    items.append(run)
                    run = []
                items.append(_OK)
                position += 10
                continue
            fault = self._fault(size, frame_type)
            if fault is not None:
                self.error = fault
                position = end
                break
            stop = position + 4 + size
            if stop > end:
                needed = stop - position
                break
            if frame_type == MESSAGE:  # the last 34 bytes or less: a whole message with an empty body
                timestamp, attempts, message_id = _MESSAGE_META.unpack_from(data, position + 8)
                run.append((timestamp, attempts, message_id, b""))
            else:
                if run:
                    items.append(run)
                    run = []
                items.append(Frame(frame_type, data[position + 8 : stop]))
            position = stop
        if run:
            items.append(run)
        if position < end or self._held:
            self._hold(data[position:], needed)
        return items

    def _fault(self, size: int, frame_type: int) -> ProtocolError | None:
        if size < 4:
            return ProtocolError(f"a frame of size {size}: the least is 4")
        if size > self._max_frame_bytes:
            for begin, protocol in _OTHER_PROTOCOLS.items():
                if size.to_bytes(4).startswith(begin):
                    return ProtocolError(f"the peer speaks {protocol}; is this the port of nsqd's TCP protocol (4150)?")
            return ProtocolError(f"a frame of {size} bytes is above max_frame_bytes={self._max_frame_bytes}")
        if frame_type == MESSAGE and size < 30:
            return ProtocolError(f"a message frame of size {size}: the least is 30")
        return None
