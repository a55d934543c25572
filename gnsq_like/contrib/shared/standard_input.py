"""Publishes standard input, a message a line: ``flask nsq publish`` and ``manage.py nsq_publish``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Protocol

from gnsq_like.errors import InvalidOption, NSQError

#: Bytes to read at once; the lines that came together are published together.
_CHUNK_BYTES = 64 * 1024


class Publishes(Protocol):
    """The part of a Producer that is used here."""

    def publish(self, topic: str, body: bytes, *, defer: float | None = None) -> object: ...
    def multi_publish(self, topic: str, bodies: Iterable[bytes]) -> object: ...


def publish_input(
    stream: BinaryIO, producer: Publishes, topic: str, *, defer: float | None, null: bool, whole: bool
) -> None:
    """Publish each line; empty ones are left out. May switch, or block.

    What has come is published before more is waited for. If a message cannot be published, those before it are, and
    none after it.

    :param null: messages end with a NUL byte, and may contain newlines
    :param whole: all of the input is one message
    :raises NSQError: with the number of messages that were published
    """
    if null and whole:
        raise InvalidOption("null", True, "--whole leaves nothing to separate")
    if whole:
        producer.publish(topic, stream.read(), defer=defer)
        return
    published = 0
    try:
        for bodies in _records(stream, b"\0" if null else b"\n"):
            if defer is None:
                producer.multi_publish(topic, bodies)
                published += len(bodies)
                continue
            for body in bodies:
                producer.publish(topic, body, defer=defer)
                published += 1
    except NSQError as exc:
        if not published:
            raise
        raise NSQError(f"{exc}; {published} messages were published before") from exc


def _records(stream: BinaryIO, delimiter: bytes) -> Iterator[list[bytes]]:
    """The records of the stream that are complete after each read; the last needs no delimiter."""
    rest = bytearray()
    read_some: Callable[[int], bytes] = stream.read1  # type: ignore[attr-defined]  # all buffered streams have it
    while chunk := read_some(_CHUNK_BYTES):
        rest += chunk
        if delimiter not in chunk:
            continue
        *complete, rest = rest.split(delimiter)
        if records := [bytes(record) for record in complete if record]:
            yield records
    if rest:
        yield [bytes(rest)]
