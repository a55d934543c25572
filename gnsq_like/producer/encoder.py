"""Checks and encodes publishes: every local error is raised here, before anything is registered."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any

from gnsq_like.errors import InvalidBody, InvalidOption, check_seconds
from gnsq_like.options import ProducerOptions
from gnsq_like.wire import commands
from gnsq_like.wire.names import encode_topic

#: An MPUB's body begins with the number of messages (docs/internals 1.10).
COUNT_BYTES = 4
#: Each message in it begins with its size.
SIZE_BYTES = 4
#: Limit of cached command lines, because a faulty caller may generate topics.
_MOST_HEADS = 4096

_pack_size = struct.Struct(">i").pack


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _msgpack(value: Any) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb(value)
    return packed


def make_encoder(given: str | Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """The callable for the option ``encoder``. Raises InvalidOption if its package is missing."""
    if given == "msgpack" and find_spec("msgpack") is None:
        raise InvalidOption("encoder", given, "msgpack is not installed: pip install msgpack")
    if isinstance(given, str):
        return {"json": _json, "msgpack": _msgpack}[given]
    return given


def mpub_of(line: bytes, count: int, content: bytes) -> bytes:
    """MPUB to the topic of a PUB.

    :param line: of the PUB
    :param content: the size and the bytes of each of ``count`` bodies
    """
    return b"M%b%b%b%b" % (line, _pack_size(COUNT_BYTES + len(content)), _pack_size(count), content)


class Encoder:
    """Checks and encodes publishes."""

    def __init__(self, options: ProducerOptions) -> None:
        self._limit = options.max_msg_bytes
        self._body_limit = options.max_body_bytes
        self._encode = make_encoder(options.encoder)
        self._heads: dict[str, bytes] = {}

    def body(self, given: Any) -> bytes:
        """The bytes of one message; raises InvalidBody."""
        if type(given) is bytes and given and len(given) <= self._limit and self._encode is None:
            return given
        if self._encode is not None:
            try:
                given = self._encode(given)
            except Exception as exc:
                raise InvalidBody(f"the encoder failed on a body of type {type(given).__name__}: {exc}") from exc
            if not isinstance(given, bytes | bytearray | memoryview):
                raise InvalidBody(f"the encoder must return bytes, and returned {type(given).__name__}")
        elif isinstance(given, str):
            raise InvalidBody(
                "message body must be bytes, not str: encode it yourself, or set the Producer's encoder=, "
                'such as "json" or str.encode'
            )
        return commands.encode_body(given, self._limit)

    def head(self, topic: str) -> bytes:
        """The line of a PUB; raises InvalidName."""
        head = self._heads.get(topic) if type(topic) is str else None
        if head is None:
            head = b"PUB %b\n" % encode_topic(topic)
            if len(self._heads) < _MOST_HEADS:
                self._heads[topic] = head
        return head

    def pub(self, topic: str, given: Any) -> bytes:
        """PUB of one message; raises InvalidBody, InvalidName."""
        if self._encode is not None or type(given) is not bytes or not given:
            given = self.body(given)
        size = len(given)
        if size > self._limit:
            commands.encode_body(given, self._limit)  # raises
        head = self._heads.get(topic) if type(topic) is str else None
        return b"".join((head or self.head(topic), _pack_size(size), given))

    def dpub(self, topic: str, defer: float, body: bytes) -> bytes:
        """DPUB of a checked body, after ``defer`` seconds. Raises InvalidName, InvalidOption."""
        check_seconds("defer", defer, minimum=0)
        return commands.dpub(topic, round(defer * 1000), body)

    def mpub(self, topic: str, bodies: list[bytes]) -> bytes:
        """MPUB of checked bodies. Raises InvalidName."""
        content = b"".join(chain.from_iterable(zip(map(_pack_size, map(len, bodies)), bodies, strict=True)))
        return mpub_of(self.head(topic), len(bodies), content)

    def _fit(self, bodies: Sequence[Any]) -> bool:
        """Whether all are valid bodies that fit into one MPUB: a tenth of the cost of checking each."""
        if self._encode is not None or set(map(type, bodies)) != {bytes}:
            return False
        sizes = list(map(len, bodies))
        if not 0 < min(sizes) <= max(sizes) <= self._limit:
            return False
        return COUNT_BYTES + SIZE_BYTES * len(sizes) + sum(sizes) <= self._body_limit

    def chunks(self, bodies: Iterable[Any], atomic: bool) -> Iterator[list[bytes]]:
        """Check bodies, and split them into lists for one MPUB each. Reads the iterable lazily.

        :param atomic: raise InvalidBody if they do not fit into one
        """
        if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Iterable):
            raise InvalidBody(f"multi_publish takes an iterable of bodies, not one of type {type(bodies).__name__}")
        if isinstance(bodies, list | tuple) and self._fit(bodies):
            yield list(bodies)
            return
        limit = self._body_limit
        chunk: list[bytes] = []
        size = COUNT_BYTES
        for position, given in enumerate(bodies):
            try:
                body = self.body(given)
            except InvalidBody as exc:
                raise InvalidBody(f"message {position}: {exc}") from exc
            added = SIZE_BYTES + len(body)
            if COUNT_BYTES + added > limit:
                raise InvalidBody(f"message {position}: {len(body)} bytes do not fit into max_body_bytes={limit}")
            if chunk and size + added > limit:
                if atomic:
                    raise InvalidBody(
                        f"atomic=True, but the messages do not fit into one MPUB of max_body_bytes={limit}: "
                        f"message {position} exceeds it"
                    )
                yield chunk
                chunk = []
                size = COUNT_BYTES
            chunk.append(body)
            size += added
        if chunk:
            yield chunk
