"""Publishes standard input, a message a line: ``flask nsq publish`` and ``manage.py nsq_publish``."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from gnsq_like.errors import NSQError


def publish_lines(stream: BinaryIO, publish: Callable[[bytes], object]) -> None:
    """Publish each line as it arrives; empty lines are skipped. May switch, or block.

    If a line cannot be published, those before it are, and none after it.

    :raises NSQError: with the number of messages that were published
    """
    published = 0
    try:
        for line in stream:
            if body := line.removesuffix(b"\n"):
                publish(body)
                published += 1
    except NSQError as exc:
        if not published:
            raise
        raise NSQError(f"{exc}; {published} messages were published before") from exc
