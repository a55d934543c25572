"""The source's part in Spark's driver: the next batch, its parts, and the clean-up after it.

Spark calls these methods from one thread of one process that lives as long as the query; between calls nothing runs.
An exception fails the query at once. So network errors end here (an nsqd that does not answer has no messages for
now), and :meth:`Driver.commit` raises nothing at all. The order of calls is in docs/internals S1. It follows that

- ``initial`` may be called twice, and, after a restart in the first batch, for a log that is another one. So it only
  names a log; the first plan creates it.
- A plan is written into the log before Spark hears of it. So a plan whose parts Spark asks for is known to have been
  made, and one that Spark never wrote down is used again.
- ``parts`` may be the first call of a process, and may be repeated.
- ``commit`` may be skipped for a batch: each commit finishes all batches up to its own.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any

import gevent

from gnsq_like.errors import HTTPError
from gnsq_like.spark.options import SourceOptions
from gnsq_like.spark.source.daemons import Daemons
from gnsq_like.spark.source.plan import Depth, Outstanding, make_plan
from gnsq_like.spark.staging import index
from gnsq_like.spark.staging.errors import DataLost, StagingError
from gnsq_like.spark.staging.offsets import Offset, Part
from gnsq_like.spark.staging.staging_log import StagingLog, base_of, unfinished_logs
from gnsq_like.spark.staging.store import OpenStore, Store, check_store, open_store

logger = logging.getLogger(__name__)

#: An idle query polls for messages after this share of the time for which it has been idle (up to pollIntervalMs), so
#: that polling costs little and delays little.
_POLL_SHARE = 0.02
#: The shortest time between two polls in seconds, and as a multiple of the duration of the last one.
_POLL_LEAST = 0.01
_POLL_REST = 4.0
#: Seconds between two checks whether messages in flight came back.
_IN_FLIGHT_POLL = 0.1
#: Seconds by which nsqd may be late with messages whose timeout is over: it notices new channels every 5 s.
_NSQD_LATE = 6.0


class Driver:
    """The driver's side of one query. Opens nothing before the first call.

    :param open_store: opens the staging location
    """

    def __init__(self, options: SourceOptions, open_store: OpenStore = open_store) -> None:
        self._options = options
        self._open_store = open_store
        self._base = base_of(options.topic, options.channel)
        self._daemons = Daemons(options)
        self._opened: Store | None = None
        #: The log that a new query would begin.
        self._new_log = uuid.uuid4().hex
        #: The log that is known to exist.
        self._known_log = ""
        #: Whether the topic and the channel were created, or their daemons at least answered.
        self._prepared = False
        #: Whether the log may have a batch that was planned and is not in Spark's log.
        self._may_resume = True
        #: For an AvailableNow run, the messages that it still has to plan; None for other triggers.
        self._outstanding: Outstanding | None = None
        #: The last planned batch, until the messages that it took are subtracted from ``_outstanding``. Not a resumed
        #: one: its messages may have been staged before the run.
        self._running: Offset | None = None
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

    def _log(self, log_id: str) -> StagingLog:
        return StagingLog(self._store, self._base, log_id)

    # -- the beginning ------------------------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """The offset before the first batch of a new query; always the same."""
        return Offset(self._new_log, 0).to_dict()

    def prepare_available_now(self) -> None:
        """Count the messages that nsqd has now: the run takes no later ones. May switch."""
        self._prepare()
        deadline = time.monotonic() + self._options.msg_timeout + _NSQD_LATE
        depths = self._daemons.settled_depths()
        while self._options.available_now_wait_in_flight and time.monotonic() < deadline:
            if not any(depth.in_flight for depth in depths.values()):
                break
            gevent.sleep(_IN_FLIGHT_POLL)
            depths = self._daemons.settled_depths()
        self._outstanding = Outstanding(depths)
        self._running = None

    def _prepare(self) -> None:
        if not self._prepared:
            self._daemons.prepare()
            self._prepared = True

    # -- the next batch -----------------------------------------------------------------------------------

    def latest(self, start: Mapping[str, Any], *, limited: bool = True) -> Mapping[str, Any]:
        """The end of the next batch, or ``start`` itself if there are no messages. May switch.

        :param limited: whether the options that limit a batch apply
        :raises StagingError: the stage cannot be used, or is not the one that the query began with
        """
        offset = Offset.from_dict(start)
        if offset.batch and offset.log != self._known_log:
            self._check_known(offset)
            self._known_log = offset.log
        if self._may_resume:
            resumed = self._resumable(offset)
            if resumed is not None:
                return self._planned(resumed)
            self._may_resume = False
        try:
            self._prepare()
        except HTTPError:
            # A new query that reaches no daemon is a mistake. One that has run waits until they are back.
            if not offset.batch:
                raise
        depths = self._poll()
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
        self._running = self._write(Offset(offset.log, offset.batch + 1, plan))
        return self._planned(self._running)

    def _write(self, offset: Offset) -> Offset:
        """Write a plan into the log; returns the one that is there."""
        log = self._log(offset.log)
        if offset.batch == 1:
            log.create()
        if log.write_plan(offset):
            return offset
        # Another run of this query is alive. With one plan the two do no harm to each other; Spark stops one of them.
        return log.plan_of(offset.batch) or offset

    def _planned(self, offset: Offset) -> dict[str, Any]:
        self._batch_at = time.monotonic()
        return offset.to_dict()

    def _check_known(self, offset: Offset) -> None:
        log = self._log(offset.log)
        if log.exists():
            return
        self._lost(
            f"the checkpoint belongs to log {offset.log}, which is not at stagingLocation "
            f"{self._options.staging_location}: that is another place, topic or channel than before, or was deleted"
        )
        log.create()

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{what}; staged messages may be lost. failOnDataLoss=false continues without them")
        logger.error("%s; continuing without them, since failOnDataLoss=false", what)

    def _resumable(self, offset: Offset) -> Offset | None:
        """A batch that was planned before and is not in Spark's log, or whose query lost its checkpoint."""
        planned = self._log(offset.log).plan_of(offset.batch + 1)
        if planned is not None or self._options.unfinished_log == "ignore":
            return planned
        if offset.batch and self._options.unfinished_log != "adopt":
            return None
        others = [each for each in unfinished_logs(self._store, self._base) if each[0] != offset.log]
        if not others:
            return None
        log_id, batch = others[0]
        if self._options.unfinished_log == "adopt":
            logger.warning("adopting batch %d of log %s, which was staged and never finished", batch, log_id)
            return self._log(log_id).plan_of(batch)
        raise StagingError(
            f"stagingLocation {self._options.staging_location} holds messages of topic {self._options.topic}, channel "
            f"{self._options.channel} that were staged for another query and never finished (log {log_id} from batch "
            f"{batch}). If that query runs, give this one a stagingLocation of its own. If its checkpoint is gone, set "
            f"unfinishedLog=adopt to deliver them first (its last batch may then come twice), or unfinishedLog=ignore "
            f"to leave them where they are"
        )

    # -- how much nsqd has --------------------------------------------------------------------------------

    def _poll(self) -> dict[str, Depth]:
        """The messages that the next batch may take, after a short wait if nothing has come lately. May switch."""
        if self._outstanding is not None:
            depths = self._still_outstanding(self._outstanding)
        else:
            self._throttle()
            began = time.monotonic()
            depths = self._daemons.depths()
            self._poll_took = time.monotonic() - began
        self._polled_at = time.monotonic()
        return depths

    def _throttle(self) -> None:
        now = time.monotonic()
        least = max(_POLL_LEAST, _POLL_REST * self._poll_took)
        interval = min(self._options.poll_interval, max(least, (now - self._batch_at) * _POLL_SHARE))
        if self._polled_at + interval > now:
            gevent.sleep(self._polled_at + interval - now)

    def _still_outstanding(self, outstanding: Outstanding) -> dict[str, Depth]:
        if self._running is not None:
            outstanding.subtract(self._taken(self._running))
            self._running = None
        return outstanding.limited(self._daemons.depths()) if outstanding else {}

    def _taken(self, offset: Offset) -> dict[str, int]:
        """How many messages a batch took from each nsqd. A part without its END record counts as it was planned."""
        log = self._log(offset.log)
        ends = {(staged.address, staged.split): log.end_of(staged) for staged in log.batch_parts(offset.batch)}
        taken = dict.fromkeys(offset.plan, 0)
        for part in offset.parts():
            end = ends.get((part.address, part.split))
            taken[part.address] += part.messages if end is None else end.taken
        return taken

    def lag(self) -> dict[str, Any] | None:
        """How much waits in each nsqd as of the last poll, by topic; None before the first one. Never switches."""
        depths, away = self._daemons.last_depths, self._daemons.away
        if not (depths or away):
            return None
        found: dict[str, Any] = {
            address: {"messages": depth.messages, "in_flight": depth.in_flight} for address, depth in depths.items()
        }
        return {self._options.topic: {**found, **{address: {"away": True} for address in away}}}

    # -- a batch that Spark has written down --------------------------------------------------------------

    def parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Part]:
        """The parts of the batches after ``start`` up to ``end``; makes their places in the stage.

        :raises DataLost: the batch was planned, and its staged messages are gone
        """
        first, last = Offset.from_dict(start), Offset.from_dict(end)
        if (first.log, first.batch) == (last.log, last.batch) or not last.batch:
            return []
        log = self._log(last.log)
        # Usually one batch. The log has the plans if there are more.
        since = first.batch if first.log == last.log else last.batch - 1
        parts = []
        for batch in range(since + 1, last.batch + 1):
            planned = log.plan_of(batch)
            if planned is None:
                self._lost(f"batch {batch} of log {last.log} was planned, and its stage is gone")
                if log.committed() >= batch or batch < last.batch:
                    continue
                log.create()
                log.write_plan(last)
                planned = last
            parts += planned.parts()
        log.make_parts(parts)
        return parts

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark has finished everything up to ``end``. Raises nothing: the next commit makes up for a failure."""
        try:
            self._commit(Offset.from_dict(end))
        except Exception:
            logger.exception("finishing a batch failed; it is tried again after the next one")

    def _commit(self, end: Offset) -> None:
        log = self._log(end.log)
        batches = [batch for batch in log.batches() if batch <= end.batch]
        finished = log.committed()
        for batch in batches:
            if batch > finished:
                for staged in log.batch_parts(batch):
                    log.seal_staged(staged)
                    index.remember(log, staged, window=self._options.dedupe == "window")
        log.write_watermark(end.batch)
        for batch in batches:
            log.retire(batch)
        retention = {"unsure": self._options.dedupe_retention, "window": self._options.dedupe_window}
        index.forget(log, retention)
