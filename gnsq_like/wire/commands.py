"""Commands of a client, as bytes.

Every function returns the bytes of one command, to be written whole. Names are checked here, so no command can be
made that ends its line early or that nsqd answers by closing the connection. The daemons' ``requests`` decodes
these commands; keep the two in step.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence

from gnsq_like.errors import InvalidBody
from gnsq_like.wire.names import encode_channel, encode_topic

#: The first bytes of a client of nsqd.
MAGIC_V2 = b"  V2"
#: The first bytes of nsqd to nsqlookupd.
MAGIC_V1 = b"  V1"

NOP = b"NOP\n"
CLS = b"CLS\n"
PING = b"PING\n"

_INT32 = struct.Struct(">i")


def _with_body(line: bytes, body: bytes) -> bytes:
    return line + _INT32.pack(len(body)) + body


def encode_body(body: bytes | bytearray | memoryview, max_bytes: int | None = None) -> bytes:
    """Check the body of one message and return it as bytes.

    :param body: not empty (docs/internals 1.9)
    :param max_bytes: nsqd's max-msg-size if it is known
    :raises InvalidBody: if it is empty, larger than that, or not bytes
    """
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidBody(f"message body must be bytes, not {type(body).__name__}; encode it first")
        body = bytes(body)
    if not body:
        raise InvalidBody("message body is empty; nsqd accepts no empty message")
    if max_bytes is not None and len(body) > max_bytes:
        raise InvalidBody(f"message body has {len(body)} bytes, more than the limit of {max_bytes}")
    return body


def identify(fields: Mapping[str, object]) -> bytes:
    """IDENTIFY with its JSON object (docs/internals 1.3; the same form for nsqlookupd, 4.1)."""
    return _with_body(b"IDENTIFY\n", json.dumps(fields, separators=(",", ":")).encode())


def auth(secret: str) -> bytes:
    """AUTH (docs/internals 1.4)."""
    return _with_body(b"AUTH\n", secret.encode())


def sub(topic: str, channel: str) -> bytes:
    """SUB (docs/internals 1.5); raises InvalidName."""
    return b"SUB %b %b\n" % (encode_topic(topic), encode_channel(channel))


def rdy(count: int) -> bytes:
    """RDY (docs/internals 1.6)."""
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    """FIN of one message, by its 16-byte id (docs/internals 1.7)."""
    return b"FIN %b\n" % message_id


def fin_many(message_ids: Sequence[bytes]) -> bytes:
    """One FIN for each of several messages; empty if there are none."""
    if not message_ids:
        return b""
    return b"FIN %b\n" % b"\nFIN ".join(message_ids)


def req(message_id: bytes, delay_ms: int) -> bytes:
    """REQ (docs/internals 1.7); nsqd lowers a delay above its max-req-timeout."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    """TOUCH (docs/internals 1.7)."""
    return b"TOUCH %b\n" % message_id


def pub(topic: str, body: bytes) -> bytes:
    """PUB (docs/internals 1.9); raises InvalidName, InvalidBody."""
    body = encode_body(body)
    return b"PUB %b\n%b%b" % (encode_topic(topic), _INT32.pack(len(body)), body)


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    """DPUB (docs/internals 1.11); raises InvalidName, InvalidBody."""
    body = encode_body(body)
    return b"DPUB %b %d\n%b%b" % (encode_topic(topic), defer_ms, _INT32.pack(len(body)), body)


def mpub_body(bodies: Sequence[bytes]) -> bytes:
    """The body of MPUB and of HTTP's /mpub?binary=true: an int32 count, then an int32 size and the bytes of each.

    :raises InvalidBody: if there are no bodies or one is invalid; its position is in the text
    """
    if not bodies:
        raise InvalidBody("no messages to publish; nsqd accepts no empty MPUB")
    parts = [_INT32.pack(len(bodies))]
    pack = _INT32.pack
    for position, body in enumerate(bodies):
        try:
            body = encode_body(body)
        except InvalidBody as exc:
            raise InvalidBody(f"message {position}: {exc}") from None
        parts.append(pack(len(body)))
        parts.append(body)
    return b"".join(parts)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """MPUB (docs/internals 1.10); its body size counts everything after it. Raises InvalidName, InvalidBody."""
    return _with_body(b"MPUB %b\n" % encode_topic(topic), mpub_body(bodies))


def register(topic: str, channel: str | None = None) -> bytes:
    """REGISTER, to nsqlookupd (docs/internals 4.1)."""
    return _registration(b"REGISTER", topic, channel)


def unregister(topic: str, channel: str | None = None) -> bytes:
    """UNREGISTER, to nsqlookupd (docs/internals 4.1)."""
    return _registration(b"UNREGISTER", topic, channel)


def _registration(word: bytes, topic: str, channel: str | None) -> bytes:
    if channel is None:
        return b"%b %b\n" % (word, encode_topic(topic))
    return b"%b %b %b\n" % (word, encode_topic(topic), encode_channel(channel))
