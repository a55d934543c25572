"""The topics of a Reader: those that no nsqd has, and the backoff and counts of each."""

from __future__ import annotations

import difflib
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import gevent

from gnsq_like.errors import HTTPError
from gnsq_like.options import ReaderOptions
from gnsq_like.policy.backoff import Backoff, Mode, Strategy, exponential, full_jitter, guarded
from gnsq_like.policy.charge import FOREVER
from gnsq_like.reader.message import Outcome
from gnsq_like.reader.setup import Setup
from gnsq_like.runtime import native
from gnsq_like.runtime.dispatcher import log_soon

if TYPE_CHECKING:
    from gnsq_like.http.nsqlookupd import LookupdClient

logger = logging.getLogger(__name__)

#: Seconds after the first round of discovery in which a publisher may still create the topic.
_PATIENCE = 10.0
_MOST_NEAREST = 3

#: The result of a backoff test by outcome; other outcomes do not count.
_VERDICTS = {
    Outcome.HANDLED: Backoff.success,
    Outcome.FAILED: Backoff.failure,
    Outcome.FAILED_LAST: Backoff.failure,
}


class MissingTopics:
    """The topics of a Reader that no nsqd has, for the log and for ``Reader.stats``.

    A Reader of a misspelt topic would wait without an error.

    :param clients: of the nsqlookupds
    """

    def __init__(
        self, setup: Setup, clients: list[LookupdClient], clock: Callable[[], float] = native.monotonic
    ) -> None:
        topics = setup.topics
        self._name = setup.name
        self._pattern = topics.pattern
        self._wanted = topics.names if topics.pattern is None else (topics.text,)
        self._clients = clients
        self._clock = clock
        #: Those that the last complete round has not found.
        self.names: list[str] = []
        #: When to log what is missing: once, some time after the first complete round.
        self._due_at: float | None = None
        self._logged: list[str] = []

    def found(self, topics: Iterable[str], complete: bool) -> None:
        """A round of discovery has found these topics; if ``complete``, no others. Never switches."""
        found = set(topics) if self._pattern is None else {self._pattern.pattern for _ in topics}
        for name in found.intersection(self._logged):
            self._logged.remove(name)
            log_soon(logger.info, "%s: topic %r has been found", self._name, name)
        if complete:
            self.names = [name for name in self._wanted if name not in found]
            if self._due_at is None:
                self._due_at = self._clock() + _PATIENCE

    def look(self) -> None:
        """Once a second: log missing topics, if that is due. Never switches."""
        if self._due_at is not None and self._clock() >= self._due_at:
            self._due_at = math.inf
            self._logged = [*self.names]
            if self._logged:
                gevent.spawn(self._log, [*self._logged])

    def _log(self, names: list[str]) -> None:
        """Log that these are missing, with the topics of similar names, for which nsqlookupd is asked. May switch."""
        known: set[str] = set()
        for client in self._clients:
            try:
                known.update(client.topics())
            except HTTPError:
                continue
        where = ", ".join(client.url for client in self._clients)
        for name in names:
            what = f"topic {name!r}" if self._pattern is None else f"a topic that matches {name!r}"
            near = [] if self._pattern is not None else difflib.get_close_matches(name, known, _MOST_NEAREST)
            nearest = f"; nearest: {', '.join(map(repr, near))}" if near else ""
            text = "%s: no nsqd that nsqlookupd at %s knows has %s%s; waiting for it"
            log_soon(logger.warning, text, self._name, where, what, nearest)


@dataclass
class MessageCounts:
    """Messages and their answers; flow control sees every answer once."""

    received: int = 0
    finished: int = 0
    #: Of the finished ones.
    given_up: int = 0
    #: Likewise.
    expired: int = 0
    requeued: int = 0
    #: Requeued or given up, with backoff.
    failed: int = 0
    #: Not answered: their connection was lost, or their time was over before a handler began.
    lost: int = 0

    def count(self, outcome: Outcome, number: int) -> None:
        """Count deliveries with this outcome."""
        if outcome is Outcome.HANDLED:
            self.finished += number
        elif outcome is Outcome.LOST:
            self.lost += number
        elif outcome in (Outcome.FAILED, Outcome.REQUEUED):
            self.requeued += number
        else:
            self.finished += number
            self.given_up += number if outcome in (Outcome.GIVEN_UP, Outcome.FAILED_LAST) else 0
            self.expired += number if outcome is Outcome.EXPIRED else 0
        if outcome in (Outcome.FAILED, Outcome.FAILED_LAST):
            self.failed += number

    def add(self, other: MessageCounts) -> None:
        """Add the counts of ``other``."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class ReaderCounts:
    """The counts of a Reader, over all its starts."""

    def __init__(self) -> None:
        self.by_topic: dict[str, MessageCounts] = {}
        #: Of topics that are gone.
        self._gone = MessageCounts()
        #: Connections made again.
        self.reconnects = 0

    def of(self, topic: str) -> MessageCounts:
        """The counts of a topic."""
        return self.by_topic.setdefault(topic, MessageCounts())

    def drop(self, topic: str) -> None:
        """The topic is gone; its counts stay in the total."""
        self._gone.add(self.by_topic.pop(topic))

    def clear(self) -> None:
        """Begin anew."""
        self.by_topic.clear()
        self._gone = MessageCounts()
        self.reconnects = 0

    @property
    def total(self) -> MessageCounts:
        """The counts of all topics. From any thread."""
        total = MessageCounts()
        for counts in [self._gone, *list(self.by_topic.values())]:
            total.add(counts)
        return total


class TopicFlow:
    """One topic of a started Reader."""

    __slots__ = ("backoff", "counts", "topic")

    def __init__(self, topic: str, options: ReaderOptions, counts: MessageCounts) -> None:
        self.topic = topic
        self.backoff = _make_backoff(options)
        self.counts = counts

    def judge(self, outcome: Outcome, stamps: Iterable[int], now: float) -> bool:
        """Apply answers to backoff; returns whether they changed it. Next: send RDY, and ``TopicFlows.report_backoff``.

        :param stamps: those of the answered messages
        """
        verdict = _VERDICTS.get(outcome, Backoff.inconclusive)
        return any(verdict(self.backoff, stamp, now) for stamp in stamps)  # after a change, no other stamp is current


class TopicFlows(dict[str, TopicFlow]):
    """The topics of a started Reader: those that are consumed, and those that are gone but for last subscriptions.

    :param counts: of the messages, over all starts
    """

    def __init__(self, setup: Setup, counts: ReaderCounts) -> None:
        self._setup = setup
        self._counts = counts
        for topic in setup.topics.names:
            self.follow(topic)

    def follow(self, topic: str) -> None:
        """Consume a topic from now on; fine if it is already."""
        if topic not in self:
            self[topic] = TopicFlow(topic, self._setup.options, self._counts.of(topic))

    def release(self, topic: str) -> None:
        """A topic is gone, and so are its subscriptions."""
        del self[topic]
        self._counts.drop(topic)

    def report_backoff(self, flow: TopicFlow) -> None:
        """Log that a block has begun or backoff has ended, and call ``on_backoff``."""
        backoff, setup = flow.backoff, self._setup
        name, level, seconds = f"{flow.topic}/{setup.channel}", 0, 0.0
        if backoff.until is not None:
            level, seconds = backoff.level, max(0.0, backoff.until - time.monotonic())
            log_soon(logger.warning, "backoff of %s: level %d, for %.1f s", name, level, seconds)
        elif backoff.mode is Mode.FLOWING:
            log_soon(logger.info, "backoff of %s has ended", name)
        else:
            return
        setup.hooks.call("on_backoff", level, seconds, *([flow.topic] if setup.topics.are_several else []))

    @property
    def modes(self) -> Mapping[Hashable, Mode]:
        """Those of the topics in backoff, for the plan."""
        return {name: flow.backoff.mode for name, flow in self.items() if flow.backoff.mode is not Mode.FLOWING}

    @property
    def blocked_until(self) -> float:
        """The earliest end of a block."""
        return min((flow.backoff.until for flow in self.values() if flow.backoff.until is not None), default=FOREVER)

    @property
    def backoff_level(self) -> int:
        """The highest level of backoff. From any thread."""
        return max((flow.backoff.level for flow in list(self.values())), default=0)


def _make_backoff(options: ReaderOptions) -> Backoff:
    strategy: Strategy
    if callable(options.backoff_strategy):
        strategy = guarded(options.backoff_strategy, exponential(options.backoff_multiplier), _strategy_failed)
    elif options.backoff_strategy == "full_jitter":
        strategy = full_jitter(native.draw, options.backoff_multiplier, options.max_backoff_duration)
    else:
        strategy = exponential(options.backoff_multiplier)
    return Backoff(strategy, options.max_backoff_duration, options.backoff_multiplier)


def _strategy_failed(problem: str) -> None:
    log_soon(logger.error, "backoff_strategy %s; using the exponential strategy instead", problem)
