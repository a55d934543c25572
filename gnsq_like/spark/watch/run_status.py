"""The status of a run, from the batches that were written, and the depth of each nsqd.

Nothing here waits or does I/O. :class:`RunStatus` belongs to the thread of the run. Others read
:attr:`RunStatus.current`, which is replaced as a whole.

**Lag** is the age of the newest message that is in the table, as long as others wait. It is 0 whenever nothing waits
and no batch is under way: after an hour without messages, the first new one does not make the table an hour late.

**Latency** leaves out messages that were published before the run had finished its first batch: they waited for Spark
to start, or for the run itself.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnsq_like.spark.pipeline.config import LimitOptions
from gnsq_like.spark.pipeline.metrics import CLASSES, MinuteMetrics, percentile
from gnsq_like.spark.source.plan import Depth, Queue
from gnsq_like.spark.staging.offsets import TopicChannel

#: Seconds over which the rate is measured.
_RATE_SPAN = 60.0


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a run."""

    #: A word for programs: lag, depth, rejected, nothing_came, no_nsqd, failed.
    name: str
    text: str
    #: Of the problem of one topic.
    topic: str = ""


class _Nsqds:
    """The nsqds of each topic with its channel, and how much waits there, as at the last look.

    :param named: the topics that are shown even if no nsqd has them
    """

    def __init__(self, named: Iterable[TopicChannel]) -> None:
        self._named = tuple(named)
        self._depths: Mapping[Queue, Depth] = {}
        #: Since when an nsqd does not answer.
        self._away: dict[str, float] = {}

    def take(self, depths: Mapping[Queue, Depth], away: Collection[str], now: float) -> None:
        """The result of ``RunStatus.look``."""
        self._depths = depths
        self._away = {address: self._away.get(address, now) for address in sorted(away)}

    def total(self, field: str) -> int | None:
        """The sum of "messages" or "in_flight" of all that answer; None if none does."""
        return _total(field, self._depths.values())

    def silent(self) -> Iterator[tuple[str, list[str]]]:
        """The topics of which no nsqd answers, with their nsqds."""
        if self._away:
            for of in self._topics:
                if not self._of(of):
                    yield of.topic, list(self._away)

    @property
    def _topics(self) -> list[TopicChannel]:
        return sorted({*self._named, *(queue.of for queue in self._depths)})

    def _of(self, of: TopicChannel) -> dict[str, Depth]:
        return {queue.address: depth for queue, depth in self._depths.items() if queue.of == of}

    def shown(self) -> Iterator[dict[str, Any]]:
        """The topics of a status."""
        for of in self._topics:
            depths = self._of(of)
            nsqds: dict[str, dict[str, Any]] = {
                address: {"depth": None, "in_flight": None, "away_since": since}
                for address, since in self._away.items()
            }
            nsqds |= {
                address: {"depth": depth.messages, "in_flight": depth.in_flight, "away_since": None}
                for address, depth in depths.items()
            }
            yield {
                **of._asdict(),
                "depth": _total("messages", depths.values()),
                "in_flight": _total("in_flight", depths.values()),
                "nsqds": [{"address": address, **nsqds[address]} for address in sorted(nsqds)],
            }


def _total(field: str, depths: Collection[Depth]) -> int | None:
    return sum(getattr(each, field) for each in depths) if depths else None


@dataclass
class _Batch:
    """A batch of the last minutes."""

    at: float
    messages: int
    rejected: int
    #: Messages by class of latency, without those that waited for the start.
    latencies: Counter[int] = field(default_factory=Counter)


class _Lag:
    """By how much the table is behind (see the head)."""

    def __init__(self, now: float) -> None:
        self._started_at = now
        #: When the newest message in the table was published.
        self._newest: float | None = None
        #: When nothing waited, and no batch was under way; and whether that is so now.
        self._clear_at: float | None = None
        self._is_clear = False

    def wrote(self, newest: float) -> None:
        """A batch is in the table, whose newest message was published then."""
        self._newest = max(self._newest or 0.0, newest)

    def look(self, now: float, *, is_clear: bool) -> None:
        """Whether nothing waits and no batch is under way."""
        self._is_clear = is_clear
        if is_clear:
            self._clear_at = now

    def seconds(self, now: float) -> float:
        """Seconds."""
        if self._is_clear:
            return 0.0
        since = self._started_at if self._newest is None else self._newest
        return max(0.0, now - max(since, self._clear_at or 0.0))


class _Figures:
    """Written messages: in total, by topic, and lately.

    :param window: the seconds of what is said of the last minutes
    """

    def __init__(self, window: float, now: float) -> None:
        self._window = window
        self.counts: Counter[str] = Counter()
        #: Messages and rejected ones.
        self._by_topic: dict[str, Counter[str]] = {}
        #: The last batch, as a status shows it.
        self.last: dict[str, Any] | None = None
        #: All since the start, for Prometheus.
        self.latencies: Counter[int] = Counter()
        self._recent: deque[_Batch] = deque()
        #: Times with the messages until then.
        self._past: deque[tuple[float, int]] = deque([(now, 0)])

    def wrote(self, rows: Sequence[MinuteMetrics], since: float | None) -> None:
        """A batch was written.

        :param since: messages that were published earlier have no latency; None if that holds for all
        """
        seen_at, at = rows[0].seen_at.timestamp(), rows[0].written_at.timestamp()
        messages, rejected = sum(row.messages for row in rows), sum(row.rejected for row in rows)
        batch = _Batch(at, messages, rejected)
        if since is not None:
            for row in rows:
                for index, count in row.latencies.items():
                    if seen_at - CLASSES.middle(index) >= since:
                        batch.latencies[index] += count
        self._recent.append(batch)
        self.last = {
            "number": rows[0].batch_number,
            "messages": messages,
            "rejected": rejected,
            "began_at": seen_at,
            "written_at": at,
        }
        self.latencies += batch.latencies
        self.counts += Counter(
            batches=1,
            messages=messages,
            rejected=rejected,
            bytes=sum(row.bytes for row in rows),
        )
        for row in rows:
            counts = self._by_topic.setdefault(row.topic, Counter())
            counts += Counter(messages=row.messages, rejected=row.rejected)

    def of_topic(self, topic: str) -> dict[str, int]:
        """The messages of a topic, and those that are not in the table."""
        counts = self._by_topic.get(topic, Counter())
        return {name: counts[name] for name in ("messages", "rejected")}

    def rate(self, now: float) -> float:
        """Messages a second in the last minute."""
        total = self.counts["messages"]
        if self._past[-1][0] < now:
            self._past.append((now, total))
        while len(self._past) > 2 and self._past[1][0] <= now - _RATE_SPAN:
            self._past.popleft()
        then, before = self._past[0]
        return (total - before) / (now - then) if now > then else 0.0

    def _lately(self, now: float) -> Iterable[_Batch]:
        """The batches of the last minutes, or the last one if that was longer ago."""
        while len(self._recent) > 1 and self._recent[0].at < now - self._window:
            self._recent.popleft()
        return self._recent

    def rejected_share(self, now: float) -> float | None:
        """Of the last minutes."""
        batches = self._lately(now)
        messages = sum(batch.messages for batch in batches)
        return sum(batch.rejected for batch in batches) / messages if messages else None

    def latency(self, now: float) -> dict[str, float] | None:
        """Of the last minutes."""
        latencies: Counter[int] = Counter()
        for batch in self._lately(now):
            latencies += batch.latencies
        if not latencies:
            return None
        points = {f"p{round(share * 100)}": percentile(latencies, share) for share in (0.5, 0.95, 0.99)}
        return {**points, "messages": latencies.total()}


class RunStatus:
    """The known state of a run.

    :param title: the pipeline's name
    :param named: its topics, as far as they have names
    :param clock: returns the time of day
    """

    def __init__(
        self,
        title: str,
        limits: LimitOptions,
        named: Iterable[TopicChannel],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._title = title
        self._limits = limits
        self._clock = clock
        self._state = "starting"
        self._started_at = now = clock()
        #: When the first batch of the run was done.
        self._ready_at: float | None = None
        #: When the last message came.
        self._came_at: float | None = None
        self._figures = _Figures(limits.window, now)
        self._behind = _Lag(now)
        self._nsqds = _Nsqds(named)
        #: Problems by name and topic, with their beginnings.
        self._problems: dict[tuple[str, str], tuple[Problem, float]] = {}
        #: The status, for JSON. Replaced as a whole.
        self.current: Mapping[str, Any] = {}
        self.renew()

    # -- what the run sees --------------------------------------------------------------------------------

    def came_before(self, at: float | None) -> None:
        """When an earlier run wrote the last batch."""
        self._came_at = at

    def runs(self) -> None:
        """The query was started."""
        self._state = "running"
        self.renew()

    def is_ready(self, at: float) -> None:
        """A batch is done, perhaps an empty one; the first call counts."""
        if self._ready_at is None:
            self._ready_at = at

    def wrote(self, rows: Sequence[MinuteMetrics]) -> None:
        """A batch was written; :meth:`renew` shows it."""
        self._figures.wrote(rows, self._ready_at)
        self.is_ready(rows[0].written_at.timestamp())
        self._came_at = rows[0].seen_at.timestamp()
        self._behind.wrote(self._came_at - rows[0].lag)

    def look(self, depths: Mapping[Queue, Depth], away: Collection[str], *, is_busy: bool) -> None:
        """How much waits now.

        :param away: nsqds that do not answer
        :param is_busy: whether a batch is under way
        """
        now = self._clock()
        self._nsqds.take(depths, away, now)
        self._behind.look(now, is_clear=not is_busy and self._nsqds.total("messages") == 0)
        self._judge(self._wrong(now), now)
        self.renew()

    def end(self, failure: str = "") -> None:
        """The run is over: judge it once more.

        :param failure: why, if it failed
        """
        now = self._clock()
        self._state = "failed" if failure else "ended"
        self._judge([*self._wrong(now), *([Problem("failed", failure)] if failure else [])], now)
        self.renew()

    # -- what it says -------------------------------------------------------------------------------------

    def _lag(self, now: float) -> float | None:
        return None if self._nsqds.total("messages") is None else self._behind.seconds(now)

    def _judge(self, wrong: Iterable[Problem], now: float) -> None:
        known = self._problems
        keys = {(each.name, each.topic): each for each in wrong}
        self._problems = {key: (each, known[key][1] if key in known else now) for key, each in keys.items()}

    def _wrong(self, now: float) -> Iterable[Problem]:
        limits = self._limits
        lag, depth, share = self._lag(now), self._nsqds.total("messages"), self._figures.rejected_share(now)
        if limits.lag is not None and lag is not None and lag > limits.lag:
            yield Problem("lag", f"the table is {time_text(lag)} behind, more than {time_text(limits.lag)}")
        if limits.depth is not None and depth is not None and depth > limits.depth:
            yield Problem("depth", f"{depth:,} messages wait, more than {limits.depth:,}")
        if limits.rejected is not None and share is not None and share > limits.rejected:
            yield Problem("rejected", f"{share:.1%} of the messages are rejected, more than {limits.rejected:.1%}")
        if limits.nothing_for is not None:
            silent = now - (self._started_at if self._came_at is None else self._came_at)
            if silent > limits.nothing_for:
                yield Problem("nothing_came", f"nothing came for {time_text(silent)}")
        for topic, nsqds in self._nsqds.silent():
            yield Problem("no_nsqd", f"no nsqd of {topic} answers: {', '.join(nsqds)}", topic)

    def renew(self) -> None:
        """Make :attr:`current` anew."""
        now, figures, problems = self._clock(), self._figures, self._problems.values()
        rate, lag, depth = figures.rate(now), self._lag(now), self._nsqds.total("messages")
        self.current = {
            "pipeline": self._title,
            "state": self._state,
            "status": "failing" if problems else "ok" if self._state != "starting" else "starting",
            "problems": [
                {"name": problem.name, "text": problem.text, "topic": problem.topic, "since": since}
                for problem, since in problems
            ],
            "started_at": self._started_at,
            "updated_at": now,
            **{name: figures.counts[name] for name in ("messages", "rejected", "bytes", "batches")},
            "rate": rate,
            "lag": lag,
            "depth": depth,
            "in_flight": self._nsqds.total("in_flight"),
            "rejected_share": figures.rejected_share(now),
            "latency": figures.latency(now),
            "window": self._limits.window,
            "last_batch": figures.last,
            "last_came_at": self._came_at,
            "topics": [{**shown, **figures.of_topic(shown["topic"])} for shown in self._nsqds.shown()],
            "latencies": dict(figures.latencies),
        }


def time_text(seconds: float) -> str:
    """A duration for people: "12 ms", "3.4 s", "31 min", "1.2 h"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48), ("d", 86400, float("inf"))):
        amount = seconds / length
        if amount < most:
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    raise AssertionError("a duration is below infinity")
