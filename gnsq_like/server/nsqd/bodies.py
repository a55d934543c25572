"""The bodies that follow the lines of some commands, and nsqd's errors about them (docs/internals 1.2, 1.10).

Every function may switch.
"""

from __future__ import annotations

from typing import NamedTuple

from gnsq_like.server.nsqd.tcp import NsqdClient
from gnsq_like.server.shared.connection import Fatal
from gnsq_like.server.shared.requests import LEAST_MPUB_ENTRY, BadBodySize


class Kind(NamedTuple):
    """The kind of a body, named in errors."""

    code: bytes
    #: The whole, and what its size is of.
    name: bytes
    content: bytes


BODY = Kind(b"E_BAD_BODY", b"body", b"body")
MESSAGE = Kind(b"E_BAD_MESSAGE", b"message", b"message body")


def take_size(client: NsqdClient, command: bytes, kind: Kind, limit: int) -> int:
    """A body's size."""
    try:
        size = client.take_int32()
    except EOFError:
        raise Fatal(kind.code, b"%b failed to read %b size" % (command, kind.content)) from None
    if size > limit:
        raise Fatal(kind.code, b"%b %b too big %d > %d" % (command, kind.name, size, limit))
    if size <= 0:
        raise Fatal(kind.code, b"%b invalid %b size %d" % (command, kind.content, size))
    return size


def take_body(client: NsqdClient, command: bytes, kind: Kind, limit: int) -> bytes:
    """A size, and so many bytes."""
    size = take_size(client, command, kind, limit)
    try:
        return client.take_bytes(size)
    except EOFError:
        raise Fatal(kind.code, b"%b failed to read %b" % (command, kind.content)) from None


def take_bodies(client: NsqdClient, body_limit: int, message_limit: int) -> list[bytes]:
    """The body of an MPUB after its size, which is ignored: the content determines the end."""
    try:
        count = client.take_int32()
    except EOFError:
        raise Fatal(b"E_BAD_BODY", b"MPUB failed to read message count") from None
    if not 0 < count <= (body_limit - 4) // LEAST_MPUB_ENTRY:
        raise Fatal(b"E_BAD_BODY", b"MPUB invalid message count %d" % count)
    bodies: list[bytes] = []
    try:
        while not client.requests.take_bodies(bodies, count, message_limit):
            client.receive()
    except BadBodySize as bad:
        if bad.size <= 0:
            detail = b"MPUB invalid message(%d) body size %d" % (bad.position, bad.size)
        else:
            detail = b"MPUB message too big %d > %d" % (bad.size, message_limit)
        raise Fatal(b"E_BAD_MESSAGE", detail) from None
    except EOFError:
        if client.requests.held_bytes < 4:
            detail = b"MPUB failed to read message(%d) body size" % len(bodies)
        else:
            detail = b"MPUB failed to read message body"
        raise Fatal(b"E_BAD_MESSAGE", detail) from None
    return bodies
