"""What changed in a cluster: topics, channels and nodes that came or went, and pauses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from gnsq_like.admin.history.trend import is_peek
from gnsq_like.admin.upstream.overview import Overview

#: Changes that are remembered.
KEPT = 200


@dataclass(frozen=True)
class Change:
    """Something that changed."""

    #: Seconds since the epoch.
    at: float
    text: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    #: "" for neutral, "bad" or "good".
    kind: str = ""


def differences(old: Overview, new: Overview) -> Iterator[Change]:
    """What is different in the newer overview. Where a node is missing, its topics count as unchanged."""
    at = new.at
    before = {total.node.address: total for total in old.nodes}
    after = {total.node.address: total for total in new.nodes}
    for address in after.keys() - before.keys():
        yield Change(at, "node joined", node=address, kind="good")
    for address in before.keys() - after.keys():
        yield Change(at, "node left", node=address, kind="bad")
    for address in after.keys() & before.keys():
        if bool(before[address].problem) != bool(after[address].problem):
            is_down = bool(after[address].problem)
            yield Change(at, "node down" if is_down else "node up", node=address, kind="bad" if is_down else "good")
    is_whole = not any(total.problem for total in (*old.nodes, *new.nodes)) and before.keys() == after.keys()
    if not is_whole:
        return
    for name in new.topics.keys() - old.topics.keys():
        yield Change(at, "topic created", topic=name)
    for name in old.topics.keys() - new.topics.keys():
        yield Change(at, "topic deleted", topic=name)
    for name in new.topics.keys() & old.topics.keys():
        was, topic = old.topics[name], new.topics[name]
        if bool(was.paused) != bool(topic.paused):
            yield Change(at, "topic paused" if topic.paused else "topic unpaused", topic=name)
        for channel in topic.channels.keys() - was.channels.keys():
            if not is_peek(channel):
                yield Change(at, "channel created", topic=name, channel=channel)
        for channel in was.channels.keys() - topic.channels.keys():
            if not is_peek(channel):
                yield Change(at, "channel deleted", topic=name, channel=channel)
        for channel in topic.channels.keys() & was.channels.keys():
            was_paused, is_paused = bool(was.channels[channel].paused), bool(topic.channels[channel].paused)
            if was_paused != is_paused:
                yield Change(at, f"channel {'paused' if is_paused else 'unpaused'}", topic=name, channel=channel)


class ChangeLog:
    """The last changes; the newest is last."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque(maxlen=KEPT)

    def add(self, change: Change) -> None:
        self._changes.append(change)

    def recent(self, count: int, since: float = 0.0) -> list[Change]:
        """The last ones, the newest first."""
        return [change for change in reversed(self._changes) if change.at > since][:count]
