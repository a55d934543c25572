"""The plan of a batch: messages to take from each nsqd, and the number of tasks. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from gnsq_like.spark.staging.offsets import Part, Share, TopicChannel

#: Batches in a row that may get nothing from an nsqd before an AvailableNow run gives up on it. Other consumers may be
#: taking everything, but a task may also just have stood still.
_FRUITLESS = 3


class Queue(NamedTuple):
    """A channel at one nsqd."""

    of: TopicChannel
    #: The nsqd's TCP address.
    address: str


#: The keys of a plan.
_Key = TypeVar("_Key", str, Queue)


@dataclass(frozen=True, slots=True)
class Depth:
    """The messages that an nsqd has for the channel."""

    messages: int
    #: Delivered to a consumer and not answered yet.
    in_flight: int = 0
    #: The mean size of the topic's bodies in bytes; 0 if it is not known.
    mean_bytes: float = 0.0
    #: How many of the messages are on their way from the topic to the channel.
    in_topic: int = 0


def apportion(amounts: Mapping[_Key, int], cap: int) -> dict[_Key, int]:
    """Divide at most ``cap`` in proportion to the amounts, never more than each has; the largest rests round up."""
    total = sum(amounts.values())
    if total <= cap:
        return {key: amount for key, amount in amounts.items() if amount}
    shares = {key: amount * cap // total for key, amount in amounts.items()}
    left = cap - sum(shares.values())
    by_rest = sorted(amounts, key=lambda key: (-(amounts[key] * cap % total), key))
    for key in by_rest[:left]:
        shares[key] += 1
    return {key: share for key, share in shares.items() if share}


def make_plan(
    depths: Mapping[_Key, Depth],
    *,
    max_messages: int | None,
    max_bytes: int | None,
    min_partitions: int,
    segment_messages: int,
) -> dict[_Key, Share]:
    """The shares of a batch; empty if there are no messages.

    :param min_partitions: splits in all at least, if each of them would have a segment
    """
    counts = {key: depth.messages for key, depth in depths.items() if depth.messages > 0}
    if max_messages is not None:
        counts = apportion(counts, max_messages)
    if max_bytes is not None:
        size = sum(count * depths[key].mean_bytes for key, count in counts.items())
        if size > max_bytes:
            counts = apportion(counts, max(1, int(sum(counts.values()) * max_bytes / size)))
    total = sum(counts.values())
    return {
        key: Share(
            count,
            max(1, min(math.ceil(min_partitions * count / total), count // segment_messages)),
            0 if max_bytes is None else max(1, max_bytes * count // total),
        )
        for key, count in sorted(counts.items())
    }


def limit_parts(parts: Sequence[Part], max_messages: int, max_bytes: int) -> list[Part]:
    """Parts of batches that were planned with other limits: each takes less if together they would take too much.

    The rest stays in nsqd. So a batch that is too large for Spark is finished once the limits are lower.
    """
    total = sum(part.messages for part in parts)
    return [
        replace(
            part,
            messages=min(part.messages, max(1, max_messages * part.messages // total)),
            bytes=min(part.bytes or max_bytes, max(1, max_bytes * part.messages // total)),
        )
        for part in parts
    ]


def by_log(plan: Mapping[Queue, Share]) -> dict[TopicChannel, dict[str, Share]]:
    """A plan's shares by topic and channel, and then by the nsqds' addresses."""
    result: dict[TopicChannel, dict[str, Share]] = {}
    for queue, share in plan.items():
        result.setdefault(queue.of, {})[queue.address] = share
    return result


class Outstanding(Generic[_Key]):
    """The messages that an AvailableNow run still has to plan. False when there are none left.

    :param depths: how much the nsqds have when the run begins
    """

    def __init__(self, depths: Mapping[_Key, Depth]) -> None:
        self._left: dict[_Key, int] = {key: depth.messages for key, depth in depths.items()}
        #: How many batches in a row got nothing from an nsqd that had something.
        self._fruitless: Counter[_Key] = Counter()

    def __bool__(self) -> bool:
        return any(self._left.values())

    @property
    def keys(self) -> set[_Key]:
        """Where there are some left."""
        return {key for key, left in self._left.items() if left}

    def left(self, key: _Key) -> int:
        """How many are left there."""
        return self._left.get(key, 0)

    def subtract(self, taken: Mapping[_Key, int]) -> dict[_Key, int]:
        """Count the messages that a batch took from each nsqd in its plan; returns those that are given up."""
        given_up: dict[_Key, int] = {}
        for key, count in taken.items():
            self._fruitless[key] = 0 if count else self._fruitless[key] + 1
            left = max(0, self._left.get(key, 0) - count)
            if left and self._fruitless[key] >= _FRUITLESS:
                given_up[key], left = left, 0
            self._left[key] = left
        return given_up

    def limited(self, depths: Mapping[_Key, Depth]) -> dict[_Key, Depth]:
        """The messages that the nsqds have now, up to the number that is still to be planned."""
        return {
            key: Depth(min(depth.messages, self._left.get(key, 0)), 0, depth.mean_bytes)
            for key, depth in depths.items()
        }
