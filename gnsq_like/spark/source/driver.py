"""What Spark's driver asks of the source: which batch comes next, its parts, and that a batch is finished.

Spark calls these from one thread of one process that lives as long as the query; between calls nothing runs. An
exception fails the query at once: so the network's errors end here (a nsqd that does not answer has nothing now),
and :meth:`Driver.commit` lets out none at all. The sequence of calls is in docs/internals S1; what follows from it:

- ``initial`` may be called twice, and, after a restart in the first batch, for a log that is another one. It
  therefore only names a log; the first plan makes it.
- A plan is written into the log before Spark hears of it. So a plan that Spark asks the parts of is known to have
  been made, and one that Spark never came to write down is used again.
- ``parts`` may be the first call of a process, and is repeatable.
- ``commit`` may be skipped for a batch: every commit finishes all batches up to its own.
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
from gnsq_like.spark.source.plan import Depth, make_plan
from gnsq_like.spark.staging import index
from gnsq_like.spark.staging.errors import DataLost, StagingError
from gnsq_like.spark.staging.offsets import Offset, Part
from gnsq_like.spark.staging.staging_log import StagingLog, base_of, unfinished_logs
from gnsq_like.spark.staging.store import OpenStore, Store, check_store, open_store

logger = logging.getLogger(__name__)

#: An idle query looks for messages after this share of the time for which it has been idle (up to pollIntervalMs),
#: so that looking costs little and delays little.
_POLL_SHARE = 0.02
#: Seconds between two looks at least, and as a multiple of what the last one took.
_POLL_LEAST = 0.01
_POLL_REST = 4.0
#: Seconds between two looks at whether messages in flight came back.
_IN_FLIGHT_POLL = 0.1
#: Batches in a row that get nothing of an nsqd before an AvailableNow run is done with it: others may be taking it all,
#: but one task may also just have stood still.
_FRUITLESS = 3
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
        self._new_log = ""
        #: The log that is known to be there.
        self._known_log = ""
        #: Whether the daemons were asked for the first time.
        self._prepared = False
        #: Whether batches that were planned and never heard of may be there.
        self._may_resume = True
        #: For an AvailableNow run, what each nsqd still has to give; None for other triggers.
        self._outstanding: dict[str, int] | None = None
        #: How many batches in a row got nothing of an nsqd that had something.
        self._fruitless: dict[str, int] = {}
        #: The batch planned last, while what it took is not subtracted from that; not one that was resumed, which may
        #: have been staged before the run.
        self._running: Offset | None = None
        #: Monotonic time of the last batch, and of the last look for messages.
        self._batch_at = self._looked_at = time.monotonic()
        #: Seconds that this look took: many nsqds take longer.
        self._look_took = 0.0

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
        if not self._new_log:
            self._new_log = uuid.uuid4().hex
        return Offset(self._new_log, 0).to_dict()

    def prepare_available_now(self) -> None:
        """Note what is there now: no later messages will be planned. May switch."""
        self._prepare()
        deadline = time.monotonic() + self._options.msg_timeout + _NSQD_LATE
        depths = self._daemons.settled_depths()
        while self._options.available_now_wait_in_flight and time.monotonic() < deadline:
            if not any(depth.in_flight for depth in depths.values()):
                break
            gevent.sleep(_IN_FLIGHT_POLL)
            depths = self._daemons.settled_depths()
        self._outstanding = {address: depth.messages for address, depth in depths.items()}
        self._fruitless = {}
        self._running = None

    def _prepare(self) -> None:
        if not self._prepared:
            self._daemons.prepare()
            self._prepared = True

    # -- batches ------------------------------------------------------------------------------------------

    def latest(self, start: Mapping[str, Any], *, limited: bool = True) -> Mapping[str, Any]:
        """The end of the next batch, or ``start`` itself if there is nothing. May switch.

        :param limited: whether the options that bound a batch apply
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
            # A new query that reaches nobody is a mistake; to one that has run, they may come back.
            if not offset.batch:
                raise
        if self._outstanding is None:
            self._throttle()
            began = time.monotonic()
            depths = self._daemons.depths()
            self._look_took = time.monotonic() - began
        else:
            depths = self._still_outstanding()
        self._looked_at = time.monotonic()
        waiting = sum(depth.messages for depth in depths.values())
        patience = self._options.max_trigger_delay if limited and self._outstanding is None else 0.0
        if waiting < self._options.min_messages and self._looked_at - self._batch_at < patience:
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
        following = Offset(offset.log, offset.batch + 1, plan)
        log = self._log(offset.log)
        if not offset.batch:
            log.create()
        if not log.write_plan(following):
            # Another run of this query lives. With one plan the two cannot hurt each other; Spark stops one of them.
            following = log.plan_of(following.batch) or following
        self._running = following
        return self._planned(following)

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
            raise DataLost(f"{what}; staged messages may be lost. failOnDataLoss=false goes on without them")
        logger.error("%s; going on without, since failOnDataLoss=false", what)

    def _resumable(self, offset: Offset) -> Offset | None:
        """A batch that was planned before, and that Spark, or its lost checkpoint, does not know of."""
        planned = self._log(offset.log).plan_of(offset.batch + 1)
        if planned is not None or self._options.unfinished_log == "ignore":
            return planned
        others = [each for each in unfinished_logs(self._store, self._base) if each[0] != offset.log]
        if offset.batch and self._options.unfinished_log != "adopt":
            return None
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

    def _throttle(self) -> None:
        """Wait a little while nothing comes. May switch."""
        now = time.monotonic()
        least = max(_POLL_LEAST, _POLL_REST * self._look_took)
        interval = min(self._options.poll_interval, max(least, (now - self._batch_at) * _POLL_SHARE))
        if self._looked_at + interval > now:
            gevent.sleep(self._looked_at + interval - now)

    def _still_outstanding(self) -> dict[str, Depth]:
        """Of what was there when the AvailableNow run began, what is still to be planned."""
        assert self._outstanding is not None
        for address, taken in self._taken().items():
            self._fruitless[address] = 0 if taken else self._fruitless.get(address, 0) + 1
            left = max(0, self._outstanding.get(address, 0) - taken)
            self._outstanding[address] = left if self._fruitless[address] < _FRUITLESS else 0
        if not any(self._outstanding.values()):
            return {}
        return {
            address: Depth(min(depth.messages, self._outstanding.get(address, 0)), 0, depth.mean_bytes)
            for address, depth in self._daemons.depths().items()
        }

    def _taken(self) -> dict[str, int]:
        """What the batch planned last took from each nsqd; without its END records, all that was planned."""
        offset, self._running = self._running, None
        if offset is None:
            return {}
        log = self._log(offset.log)
        ends = {(staged.address, staged.split): log.end_of(staged) for staged in log.batch_parts(offset.batch)}
        taken = dict.fromkeys(offset.plan, 0)
        for part in offset.parts():
            end = ends.get((part.address, part.split))
            taken[part.address] += part.messages if end is None else end.taken
        return taken

    def parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Part]:
        """The parts of what is after ``start`` up to ``end``; makes their places.

        :raises DataLost: the batch was planned, and what was staged of it is gone
        """
        first, last = Offset.from_dict(start), Offset.from_dict(end)
        if (first.log, first.batch) == (last.log, last.batch) or not last.batch:
            return []
        log = self._log(last.log)
        # One batch, usually. Of more, the log has the plans.
        since = first.batch if first.log == last.log else last.batch - 1
        parts = []
        for batch in range(since + 1, last.batch + 1):
            planned = log.plan_of(batch)
            if planned is None:
                self._lost(f"batch {batch} of log {last.log} was planned, and what was staged of it is gone")
                if log.committed() >= batch or batch < last.batch:
                    continue
                log.create()
                log.write_plan(last)
                planned = last
            parts += planned.parts()
        log.make_parts(parts)
        return parts

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark has finished everything up to ``end``. Raises nothing: what is left undone is done next time."""
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
