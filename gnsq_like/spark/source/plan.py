"""How many messages a batch takes from which nsqd, in how many tasks. Numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gnsq_like.spark.source.offsets import Share


@dataclass(frozen=True, slots=True)
class Depth:
    """What an nsqd has for the channel."""

    messages: int
    #: Delivered to somebody and not answered yet.
    in_flight: int = 0
    #: The mean size of the topic's bodies in bytes; 0 where it is not known.
    mean_bytes: float = 0.0
    #: Of the messages, those that are on their way to the channel.
    in_topic: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one task takes: a split of an nsqd's share of a batch."""

    log: str
    batch: int
    address: str
    split: int
    messages: int
    #: Bytes of bodies at which it is enough; 0 for no such limit.
    bytes: int = 0


def apportion(amounts: Mapping[str, int], cap: int) -> dict[str, int]:
    """At most ``cap`` in all, in proportion to the amounts, never more than each has; the largest rests round up."""
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
    depths: Mapping[str, Depth],
    *,
    max_messages: int | None,
    max_bytes: int | None,
    min_partitions: int,
    segment_messages: int,
) -> dict[str, Share]:
    """The shares of a batch; empty when there is nothing.

    :param min_partitions: splits in all at least, where they would have a segment each
    """
    counts = {address: depth.messages for address, depth in depths.items() if depth.messages > 0}
    if max_messages is not None:
        counts = apportion(counts, max_messages)
    if max_bytes is not None:
        size = sum(count * depths[address].mean_bytes for address, count in counts.items())
        if size > max_bytes:
            counts = apportion(counts, max(1, int(sum(counts.values()) * max_bytes / size)))
    total = sum(counts.values())
    return {
        address: Share(
            count,
            max(1, min(math.ceil(min_partitions * count / total), count // segment_messages)),
            0 if max_bytes is None else max(1, max_bytes * count // total),
        )
        for address, count in sorted(counts.items())
    }


def parts_of(log: str, batch: int, plan: Mapping[str, Share]) -> list[Part]:
    """The tasks of a batch; the same plan always gives the same."""
    return [
        Part(log, batch, address, split, messages, -(-share.bytes // share.splits))
        for address, share in plan.items()
        for split, messages in enumerate(_divided(share.messages, share.splits))
    ]


def _divided(amount: int, count: int) -> list[int]:
    return [amount // count + (index < amount % count) for index in range(count)]
