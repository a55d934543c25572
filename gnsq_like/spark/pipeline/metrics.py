"""The metrics of a batch: rows of (batch, topic, minute), from counts that tasks make.

Tasks count messages by topic, by the minute of their publish, by attempts, and by a class of their latency
(:class:`Counting`). That gives few groups for a batch of any size, and :func:`fold` makes the table's rows from them.
Percentiles come from the classes: each spans 5 %, and classes of several batches can be added, which percentiles
cannot. So the table keeps the classes beside the percentiles, and a report over any time is as exact as one over a
batch.

Latency is the time from a message's publish, by its nsqd's clock, to ``seen_at``, the start of its batch by the
driver's clock. A message that was deferred or requeued keeps the time of its publish, so its latency is long, and its
minute is long ago.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_like.runtime.quantiles import Buckets

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


# -- in Arrow ---------------------------------------------------------------------------------------------

_KEYS = ["minute", "attempts", "latency_class", "fits"]
_LOG = math.log(GROWTH)
_SHORTEST_US = round(SHORTEST * 1e6)


def schema() -> pa.Schema:
    """The table's columns: MinuteMetrics' fields."""
    kinds: dict[str, pa.DataType] = {
        **dict.fromkeys(("minute", "seen_at", "written_at"), pa.timestamp("us", tz="UTC")),
        **dict.fromkeys(("batch_number", "messages", "rejected", "bytes", "depth"), pa.int64()),
        **dict.fromkeys(("attempts", "latencies"), pa.map_(pa.int32(), pa.int64())),
        "topic": pa.string(),
    }
    return pa.schema([(name, kinds.get(name, pa.float64())) for name in COLUMNS])


def as_rows(metrics: Iterable[MinuteMetrics]) -> pa.RecordBatch:
    """The rows of the table."""
    values = [{name: getattr(each, name) for name in COLUMNS} for each in metrics]
    for row in values:
        row |= {name: list(row[name].items()) for name in ("attempts", "latencies")}
    return pa.RecordBatch.from_pylist(values, schema())


class Counting:
    """Counts messages in groups."""

    def __init__(self) -> None:
        #: By the columns of ``_KEYS``: messages, bytes, and the shortest and the longest latency.
        self._found: dict[tuple[Any, ...], list[int]] = {}

    def add(self, topic: str, kept: Mapping[str, pa.Array], sizes: pa.Array, fits: pa.Array) -> None:
        """Count messages of a topic.

        :param kept: the columns beside the body
        :param fits: whether they are not rejected
        """
        published = kept["timestamp"].cast(pa.int64())
        latency = pc.subtract(kept["seen_at"].cast(pa.int64()), published)
        minutes = pc.floor(pc.divide(published.cast(pa.float64()), 60_000_000.0)).cast(pa.int64())
        classes = pc.floor(
            pc.divide(pc.ln(pc.divide(pc.max_element_wise(latency, _SHORTEST_US), float(_SHORTEST_US))), _LOG)
        )
        table = pa.table(
            {
                "minute": minutes,
                "attempts": pc.min_element_wise(kept["attempts"], MOST_ATTEMPTS),
                "latency_class": pc.if_else(pc.less(latency, _SHORTEST_US), 0, pc.add(classes, 1)).cast(pa.int32()),
                "fits": fits,
                "bytes": sizes,
                "latency": latency,
            }
        )
        grouped = table.group_by(_KEYS, use_threads=False).aggregate(
            [([], "count_all"), ("bytes", "sum"), ("latency", "min"), ("latency", "max")]
        )
        for row in grouped.to_pylist():
            key = (topic, *(row[name] for name in _KEYS))
            count, size, shortest, longest = self._found.get(key, (0, 0, row["latency_min"], row["latency_max"]))
            self._found[key] = [
                count + row["count_all"],
                size + (row["bytes_sum"] or 0),
                min(shortest, row["latency_min"]),
                max(longest, row["latency_max"]),
            ]

    def groups(self) -> list[Group]:
        """The counted groups."""
        found = self._found.items()
        return [
            Group(60 * minute, attempts, latency_class, fits, messages, size, shortest, longest, topic)
            for (topic, minute, attempts, latency_class, fits), (messages, size, shortest, longest) in found
        ]
