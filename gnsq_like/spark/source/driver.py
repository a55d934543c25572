"""The source's part in Spark's driver: the next batch, its parts, and the clean-up after it.

Spark calls these methods from one thread of one process that lives as long as the query; between calls nothing runs.
An exception fails the query at once. So network errors end here (an nsqd that does not answer has no messages for
now), and :meth:`Driver.commit` raises nothing at all. The order of calls is in docs/internals S1. It follows that

- ``initial`` may be called twice, and after a restart in the first batch. So it names no log; the first plan creates
  one.
- A plan is written into the log before Spark hears of it. So a plan whose parts Spark asks for is known to have been
  made, and one that Spark never wrote down is used again.
- ``parts`` may be the first call of a process, and may be repeated.
- ``commit`` may be skipped for a batch: each commit finishes all batches up to its own.

A query of several topics asks for all of them at once, and its limits hold for all of them together. Each topic has a
log of its own (``query_log``); the query's offset names the batch of each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gevent

from gnsq_like.errors import NSQError
from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.nsqds import Nsqds
from gnsq_like.spark.source.plan import Depth, Outstanding, Queue, by_log, limit_parts, make_plan
from gnsq_like.spark.source.query_log import QueryLog
from gnsq_like.spark.staging.offsets import Offset, Offsets, Part, Share, TopicChannel
from gnsq_like.spark.staging.store import OpenStore, Store, check_store, open_store

logger = logging.getLogger(__name__)

#: An idle query polls for messages after this share of the time for which it has been idle so that
#: polling costs little and delays little, but at least this often, in seconds.
_POLL_SHARE = 0.02
_POLL_MOST = 0.2
#: The shortest time between two polls in seconds, and as a multiple of the duration of the last one.
_POLL_LEAST = 0.01
_POLL_REST = 4.0
#: Seconds between two checks whether messages in flight came back.
_IN_FLIGHT_POLL = 0.1
#: Seconds by which nsqd may be late with messages whose timeout is over: it notices new channels every 5 s.
_NSQD_LATE = 6.0
#: Seconds for nsqd to execute the REQs that the tasks of the last batch sent at their end.
_REQUEUED = 2.0


class Driver:
    """The driver's side of one query. Opens nothing before the first call.

    :param open_store: opens the staging location
    :param clock: returns the time of day
    """

    def __init__(
        self, options: SourceOptions, open_store: OpenStore = open_store, clock: Callable[[], float] = time.time
    ) -> None:
        self._options = options
        self._clock = clock
        self._open_store = open_store
        self._daemons = Nsqds(options)
        self._opened: Store | None = None
        #: The logs that this process has needed so far.
        self._logs: dict[TopicChannel, QueryLog] = {}
        #: Whether topics and channels were created, or their daemons at least answered.
        self._prepared = False
        #: For an AvailableNow run, the messages that it still has to plan; None for other triggers.
        self._outstanding: Outstanding[Queue] | None = None
        #: The last planned batch, until the messages that it took are subtracted from ``_outstanding``. Not a resumed
        #: one: its messages may have been staged before the run.
        self._running: dict[TopicChannel, Offset] = {}
        #: The part of the messages of the last poll that the last planned batch takes.
        self._taking: dict[Queue, Share] = {}
        #: Monotonic times of the last batch and the last poll.
        self._batch_at = self._polled_at = time.monotonic()
        #: Seconds that the last poll took: it takes longer for many nsqds.
        self._poll_took = 0.0

    @property
    def _store(self) -> Store:
        if self._opened is None:
            store = self._open_store(self._options.staging_location, self._options.storage)
            check_store(store, self._options.staging_location)
            self._opened = store
        return self._opened

    def _log(self, of: TopicChannel) -> QueryLog:
        if of not in self._logs:
            self._logs[of] = QueryLog(of, self._store, self._options)
        return self._logs[of]

    # -- the beginning ------------------------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """The offset before the first batch of a new query; always the same."""
        return Offsets().to_dict()

    def _offsets(self, value: Mapping[str, object]) -> Offsets:
        return Offsets.from_dict(value, self._options.named)

    def prepare_available_now(self) -> None:
        """Count the messages that nsqd has now: the run takes no later ones. May switch."""
        self._prepare()
        deadline = time.monotonic() + self._in_flight_wait
        depths = self._daemons.settled_depths()
        while time.monotonic() < deadline and any(depth.in_flight for depth in depths.values()):
            gevent.sleep(_IN_FLIGHT_POLL)
            depths = self._daemons.settled_depths()
        self._outstanding = Outstanding(depths)
        self._running = {}

    @property
    def _in_flight_wait(self) -> float:
        """Seconds for which an AvailableNow run waits for messages in flight."""
        return self._options.msg_timeout + _NSQD_LATE if self._options.wait_in_flight else 0.0

    def _prepare(self) -> None:
        if not self._prepared:
            self._daemons.prepare()
            self._prepared = True

    # -- the next batch -----------------------------------------------------------------------------------

    def latest(self, start: Mapping[str, object], *, limited: bool = True) -> Mapping[str, Any]:
        """The end of the next batch, or ``start`` itself if there are no messages. May switch.

        :param limited: whether the options that limit a batch apply
        :raises StagingError: the stage cannot be used, or is not the one that the query began with
        """
        offsets = self._offsets(start)
        wanted = [of for of in offsets.logs if self._options.channel_of(of.topic) == of.channel]
        for of in wanted:
            self._log(of).check(offsets.logs[of])
        resumed = self._resumed(offsets, {*wanted, *self._options.named})
        if resumed:
            return self._planned(offsets, resumed)
        try:
            self._prepare()
        except NSQError:
            # A new query that reaches no daemon is a mistake. One that has run waits until they are back.
            if not any(offset.batch for offset in offsets.logs.values()):
                raise
        depths = self._poll()
        # Of topics that a pattern has found just now.
        resumed = self._resumed(offsets, {queue.of for queue in depths})
        if resumed:
            return self._planned(offsets, resumed)
        waiting = sum(depth.messages for depth in depths.values())
        patience = self._options.max_trigger_delay if limited and self._outstanding is None else 0.0
        if waiting < self._options.min_messages and self._polled_at - self._batch_at < patience:
            return start
        plan = make_plan(
            depths,
            max_messages=self._options.max_messages if limited else None,
            max_bytes=self._options.max_bytes if limited else None,
            min_partitions=self._options.min_partitions,
            segment_messages=self._options.segment_messages,
        )
        if not plan:
            return start
        self._taking = plan
        self._running = {
            of: self._log(of).plan(self._start_of(of, offsets), shares) for of, shares in by_log(plan).items()
        }
        return self._planned(offsets, self._running)

    def _start_of(self, of: TopicChannel, offsets: Offsets) -> Offset:
        return offsets.logs.get(of) or self._log(of).begin()

    def _resumed(self, offsets: Offsets, logs: Iterable[TopicChannel]) -> dict[TopicChannel, Offset]:
        """The batches that these logs have to go on with."""
        found = {of: self._log(of).resume(self._start_of(of, offsets)) for of in sorted(logs)}
        return {of: offset for of, offset in found.items() if offset is not None}

    def _planned(self, offsets: Offsets, ends: Mapping[TopicChannel, Offset]) -> dict[str, Any]:
        self._batch_at = time.monotonic()
        return offsets.after(ends, int(self._clock() * 1e6)).to_dict()

    # -- how much nsqd has --------------------------------------------------------------------------------

    def _poll(self) -> dict[Queue, Depth]:
        """The messages that the next batch may take, after a short wait if nothing has come lately. May switch."""
        if self._outstanding is not None:
            depths = self._still_outstanding(self._outstanding)
        else:
            self._throttle()
            began = time.monotonic()
            self._taking = {}
            depths = self._daemons.depths()
            self._poll_took = time.monotonic() - began
        self._polled_at = time.monotonic()
        return depths

    def _throttle(self) -> None:
        now = time.monotonic()
        least = max(_POLL_LEAST, _POLL_REST * self._poll_took)
        interval = min(_POLL_MOST, max(least, (now - self._batch_at) * _POLL_SHARE))
        if self._polled_at + interval > now:
            gevent.sleep(self._polled_at + interval - now)

    def _still_outstanding(self, outstanding: Outstanding[Queue]) -> dict[Queue, Depth]:
        for of, offset in self._running.items():
            taken = self._log(of).taken(offset)
            given_up = outstanding.subtract({Queue(of, address): count for address, count in taken.items()})
            for queue, left in given_up.items():
                _log_left(queue, "several batches in a row got nothing", left)
        self._running = {}
        if not outstanding:
            return {}
        self._taking = {}
        deadline = time.monotonic() + max(_REQUEUED, self._in_flight_wait)
        while True:
            is_last = time.monotonic() >= deadline
            found = self._daemons.patient_depths({queue.address for queue in outstanding.keys})
            limited = outstanding.limited(found)
            if any(depth.messages for depth in limited.values()):
                return limited
            # The tasks of the last batch have returned, but nsqd may not have executed their last commands yet.
            in_flight = {queue: found[queue].in_flight for queue in outstanding.keys if queue in found}
            if is_last or not any(in_flight.values()):
                for queue, count in in_flight.items():
                    if count:
                        _log_left(queue, f"in flight: {count}", outstanding.left(queue))
                return limited
            gevent.sleep(_IN_FLIGHT_POLL)

    def lag(self) -> dict[str, Any] | None:
        """The messages that each nsqd has beyond the planned batch, by topic; None before the first poll. Never
        switches.

        Spark reports no progress while there are no batches. So the last report is that of the last batch, and it must
        not count the messages of this batch as waiting.
        """
        depths, away = self._daemons.last_depths, self._daemons.away
        if not (depths or away):
            return None
        topics = sorted({queue.of.topic for queue in depths} | {of.topic for of in self._options.named})
        found: dict[str, Any] = {topic: {address: {"away": True} for address in sorted(away)} for topic in topics}
        for queue, depth in depths.items():
            share = self._taking.get(queue)
            left = depth.messages - (share.messages if share is not None else 0)
            found[queue.of.topic][queue.address] = {"messages": left, "in_flight": depth.in_flight}
        return found

    # -- a batch that Spark has written down --------------------------------------------------------------

    def parts(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[Part]:
        """The parts of the batches after ``start`` up to ``end``; makes their places in the stage.

        :raises DataLost: the batch was planned, and its staged messages are gone
        """
        first, last = self._offsets(start), self._offsets(end)
        now = int(self._clock() * 1e6)  # for a batch whose offset was written anew
        with suppress(NSQError):  # tasks find out whether an nsqd is there
            self._prepare()
        connected = any(log.has_received for log in self._logs.values())
        parts = [
            replace(
                part,
                seen_us=last.at_us or now,
                http=self._daemons.http_address(part.address),
                connected_before=connected,
            )
            for of, offset in last.logs.items()
            for part in self._log(of).parts(first.logs.get(of), offset)
        ]
        running = {(offset.log, offset.batch) for offset in self._running.values()}
        if all((part.log, part.batch) in running for part in parts):
            return parts
        return limit_parts(parts, self._options.max_messages, self._options.max_bytes)

    def commit(self, end: Mapping[str, object]) -> None:
        """Spark has finished everything up to ``end``. Raises nothing: the next commit makes up for a failure."""
        try:
            for of, offset in self._offsets(end).logs.items():
                self._log(of).commit(offset)
        except Exception:
            logger.exception("finishing a batch failed; it is tried again after the next one")


def _log_left(queue: Queue, why: str, left: int) -> None:
    text = "topic %s at %s: %s; about %d messages are left for another run"
    logger.warning(text, queue.of.topic, queue.address, why, left)
