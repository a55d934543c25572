"""nsqd.dat: the topics and channels, and which are paused, in nsqd's JSON (docs/internals 2.9)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import VERSION
from gnsq_like.server.shared.gotext import GoObject, read_object
from gnsq_like.wire.names import is_ephemeral, is_valid_name

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
                if not is_ephemeral(channel.name)
            ]
            or None,
        }
        for topic in topics
        if not is_ephemeral(topic.name)
    ]
    return json.dumps({"topics": found or None, "version": VERSION}, separators=(",", ":")).encode()


def decode(data: bytes) -> list[Entry]:
    """The topics, without those that have invalid names, as in nsqd. Missing fields have their defaults.

    :raises BadMetadata: if it is not JSON, or not of this form
    """
    try:
        return _entries(read_object(data).objects("topics"))
    except ValueError as exc:
        raise BadMetadata(str(exc)) from None


def _entries(values: Iterable[GoObject]) -> list[Entry]:
    entries = []
    for value in values:
        name, paused, channels = value.text("name"), value.flag("paused"), _entries(value.objects("channels"))
        if is_valid_name(name):
            entries.append(Entry(name, paused, tuple(channels)))
        else:
            log.warning("skipping creation of invalid topic or channel %s", name)
    return entries
