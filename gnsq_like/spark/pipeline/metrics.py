"""The metrics of a batch: rows of (batch, topic, minute), from counts that tasks make.

Tasks count messages by topic, by the minute of their publish, by attempts, and by a class of their latency
(``counting``). That gives few groups for a batch of any size, and :func:`fold` makes the table's rows from them.
Percentiles come from the classes: each spans 5 %, and classes of several batches can be added, which percentiles
cannot. So the table keeps the classes beside the percentiles, and a report over any time is as exact as one over a
batch.

Latency is the time from a message's publish, by its nsqd's clock, to ``seen_at``, the start of its batch by the
driver's clock. A message that was deferred or requeued keeps the time of its publish, so its latency is long, and its
minute is long ago.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from gnsq_like.quantiles import Buckets

#: How much wider each class of latencies is than the one before.
GROWTH = 1.05
#: Seconds below which all latencies are in class 0.
SHORTEST = 0.001
CLASSES = Buckets(GROWTH, SHORTEST)
#: ``percentile(latencies, share)``: the latency in seconds that this share of messages does not exceed, within 2.5 %.
percentile = CLASSES.quantile
#: Messages with this many attempts or more are counted together.
MOST_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of a batch that are alike."""

    #: Seconds since the epoch at which their minute begins.
    minute: int
    attempts: int
    latency_class: int
    fits: bool
    messages: int
    bytes: int
    #: Microseconds.
    shortest_us: int
    longest_us: int
    topic: str = ""


@dataclass(frozen=True, slots=True)
class MinuteMetrics:
    """The messages of a batch and a topic published in one minute. Times of day are UTC, durations seconds."""

    #: When they were published, to the minute.
    minute: datetime
    batch_number: int
    #: When the batch began.
    seen_at: datetime
    #: When its rows were written.
    written_at: datetime
    #: All messages, and how many of them were rejected.
    messages: int
    rejected: int
    #: Bytes of bodies.
    bytes: int
    latency_min: float
    latency_p50: float
    latency_p95: float
    latency_p99: float
    latency_max: float
    #: The age of the newest message of the whole batch: how far behind the pipeline is.
    lag: float
    #: How many messages waited in nsqd when the batch was written; None if that is not known.
    depth: int | None
    #: Messages by the number of their attempts.
    attempts: Mapping[int, int] = field(default_factory=dict)
    #: Messages by the class of their latency (``CLASSES``).
    latencies: Mapping[int, int] = field(default_factory=dict)
    topic: str = ""


COLUMNS = tuple(each.name for each in fields(MinuteMetrics))


def fold(
    groups: Iterable[Group],
    *,
    batch_number: int,
    seen_at: datetime,
    written_at: datetime,
    depth: int | None,
) -> list[MinuteMetrics]:
    """The table's rows of a batch, by topic and minute; the batch has at least one message."""
    by_minute: dict[tuple[str, int], list[Group]] = {}
    for group in groups:
        by_minute.setdefault((group.topic, group.minute), []).append(group)
    common = {
        "batch_number": batch_number,
        "seen_at": seen_at,
        "written_at": written_at,
        "lag": min(group.shortest_us for each in by_minute.values() for group in each) / 1e6,
        "depth": depth,
    }
    return [_row(*key, by_minute[key], common) for key in sorted(by_minute)]


def _row(topic: str, minute: int, groups: list[Group], common: Mapping[str, Any]) -> MinuteMetrics:
    attempts: Counter[int] = Counter()
    latencies: Counter[int] = Counter()
    for group in groups:
        attempts[min(group.attempts, MOST_ATTEMPTS)] += group.messages
        latencies[group.latency_class] += group.messages
    shortest = min(group.shortest_us for group in groups) / 1e6
    longest = max(group.longest_us for group in groups) / 1e6
    # The middle of a class may lie outside the range of the latencies.
    points = [min(max(percentile(latencies, share), shortest), longest) for share in (0.5, 0.95, 0.99)]
    return MinuteMetrics(
        minute=datetime.fromtimestamp(minute, UTC),
        messages=sum(group.messages for group in groups),
        rejected=sum(group.messages for group in groups if not group.fits),
        bytes=sum(group.bytes for group in groups),
        latency_min=shortest,
        latency_p50=points[0],
        latency_p95=points[1],
        latency_p99=points[2],
        latency_max=longest,
        attempts=dict(attempts),
        latencies=dict(latencies),
        topic=topic,
        **common,
    )
