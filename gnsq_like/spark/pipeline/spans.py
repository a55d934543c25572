"""Metrics over time: the messages by when they arrived, in spans of equal length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

from gnsq_like.spark.pipeline.metrics import MinuteMetrics

#: Seconds that a span may have. The shortest is taken that gives at most so many spans and is no shorter than a batch
#: usually is: in shorter spans, the messages of a batch would look like a higher rate than there ever was.
_LENGTHS = (1, 2, 5, 10, 30, 60, 120, 300, 900, 3600, 2 * 3600, 6 * 3600, 86400)
_MOST_SPANS = 120


@dataclass(frozen=True, slots=True)
class Span:
    """The messages that arrived in one span of time."""

    start: datetime
    #: Seconds.
    length: float
    messages: int = 0
    #: Seconds by which the table was behind; None without a batch.
    lag: float | None = None
    #: How many messages waited in nsqd at the end; None if that is not known.
    depth: int | None = None

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.length


def spans_of(rows: Sequence[MinuteMetrics]) -> list[Span]:
    """Spans of one length and without gaps, from the first arrival to the last."""
    first, last = (int(pick(row.seen_at.timestamp() for row in rows)) for pick in (min, max))
    least = max(_usual(rows), (last - first) / (_MOST_SPANS - 2))
    length = next((each for each in _LENGTHS if each >= least), _LENGTHS[-1])
    begin = first - first % length
    by_span: dict[int, list[MinuteMetrics]] = {start: [] for start in range(begin, last + 1, length)}
    for row in rows:
        at = int(row.seen_at.timestamp())
        by_span[at - at % length].append(row)
    return [_span(start, length, by_span[start]) for start in sorted(by_span)]


def _usual(rows: Sequence[MinuteMetrics]) -> float:
    """Seconds that a batch usually covers: until the next one, or, for a single one, until it was written."""
    begins = sorted({row.seen_at for row in rows})
    if len(begins) == 1:
        return (rows[0].written_at - rows[0].seen_at).total_seconds()
    return median((later - earlier).total_seconds() for earlier, later in pairwise(begins))


def _span(start: int, length: int, rows: list[MinuteMetrics]) -> Span:
    depths = [row.depth for row in sorted(rows, key=lambda row: row.seen_at) if row.depth is not None]
    return Span(
        start=datetime.fromtimestamp(start, UTC),
        length=length,
        messages=sum(row.messages for row in rows),
        lag=max((row.lag for row in rows), default=None),
        depth=depths[-1] if depths else None,
    )


def added(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    """Several counts as one."""
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return total
