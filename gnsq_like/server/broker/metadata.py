"""nsqd.dat: the topics and channels, and which are paused, in nsqd's JSON (docs/internals 2.9)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.options import VERSION
from gnsq_like.wire.names import is_valid_name

log = logging.getLogger("gnsq_like.nsqd")


class BadMetadata(ValueError):
    """Not nsqd's metadata; the text says why."""


@dataclass(frozen=True)
class Entry:
    """A topic or a channel."""

    name: str
    paused: bool
    #: A topic's.
    channels: tuple[Entry, ...] = ()


def encode(topics: Iterable[Topic]) -> bytes:
    """The durable topics with their durable channels."""
    found = [
        {
            "name": topic.name,
            "paused": topic.paused,
            "channels": [
                {"name": channel.name, "paused": channel.paused}
                for channel in topic.channels.values()
                if not channel.ephemeral
            ]
            or None,
        }
        for topic in topics
        if not topic.ephemeral
    ]
    return json.dumps({"topics": found or None, "version": VERSION}, separators=(",", ":")).encode()


def decode(data: bytes) -> list[Entry]:
    """The topics, without those that have invalid names, as in nsqd. Missing fields have their defaults.

    :raises BadMetadata: if it is not JSON, or not of this form
    """
    try:
        return _entries(_get(json.loads(data), "topics", (list, type(None)), None))
    except ValueError as exc:
        raise BadMetadata(str(exc)) from None


def _entries(values: Any) -> list[Entry]:
    entries = []
    for value in values or ():
        name = _get(value, "name", str, "")
        if is_valid_name(name):
            channels = _entries(_get(value, "channels", (list, type(None)), None))
            entries.append(Entry(name, bool(_get(value, "paused", (bool, type(None)), False)), tuple(channels)))
        else:
            log.warning("skipping creation of invalid topic or channel %s", name)
    return entries


def _get(value: Any, key: str, kind: type | tuple[type, ...], default: object) -> Any:
    if not isinstance(value, Mapping):
        raise BadMetadata(f"{value!r:.80} is not an object")
    found = value.get(key, default)
    if not isinstance(found, kind):
        raise BadMetadata(f"{key} cannot be {found!r:.80}")
    return found
