"""The log of one topic and channel, as the driver of a query keeps it: plans, parts, and the clean-up after a batch.

A query of several topics has one for each of them. They are independent: a batch of the query continues some of the
logs, and each resumes and finishes its own batches.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.staging import index
from gnsq_like.spark.staging.offsets import Offset, Part, Share, TopicChannel
from gnsq_like.spark.staging.records import DamagedRecord
from gnsq_like.spark.staging.staging_log import StagingLog, base_of, unfinished_logs
from gnsq_like.spark.staging.store import DataLost, StagingError, Store

logger = logging.getLogger(__name__)


class QueryLog:
    """The log of a query for one topic and channel."""

    def __init__(self, of: TopicChannel, store: Store, options: SourceOptions) -> None:
        self._of = of
        self._store = store
        self._options = options
        self._base = base_of(*of)
        #: The id of the log that the query would begin.
        self._new_log = uuid.uuid4().hex
        #: The log that is known to exist.
        self._known_log = ""
        #: The last end that was committed, without its plan.
        self._committed: Offset | None = None
        #: Whether the log may have a batch that was planned and is not in Spark's log.
        self._may_resume = True
        #: The first batch that this process has planned; None before that.
        self._first_planned: int | None = None
        #: Whether one of these has got messages.
        self.has_received = False

    def _log(self, log_id: str) -> StagingLog:
        return StagingLog(self._store, self._base, log_id)

    def begin(self) -> Offset:
        """The offset before the first batch; always the same."""
        return Offset(self._new_log, 0)

    def check(self, offset: Offset) -> None:
        """Raise DataLost if the log of an earlier batch is not here."""
        if not offset.batch or offset.log == self._known_log:
            return
        log = self._log(offset.log)
        if not log.exists():
            lost(
                self._options,
                f"the checkpoint belongs to log {offset.log}, which is not at staging_location "
                f"{self._options.staging_location}: that is another place, topic or channel than before, or was "
                f"deleted, with messages that may not have been delivered",
            )
            log.create()
        self._known_log = offset.log

    def resume(self, offset: Offset) -> Offset | None:
        """A batch that was planned before and is not in Spark's log, or whose query lost its checkpoint.

        :raises StagingError: another query has left something, and the options do not say what to do with it
        """
        if not self._may_resume:
            return None
        found = self._resumable(offset)
        self._may_resume = found is not None
        return found

    def _resumable(self, offset: Offset) -> Offset | None:
        try:
            planned = self._log(offset.log).plan_of(offset.batch + 1)
        except DamagedRecord as exc:
            raise StagingError(
                f"staging_location {self._options.staging_location}: {exc}. Spark has not begun this batch: delete the "
                f"file"
            ) from exc
        if planned is not None:
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
            f"staging_location {self._options.staging_location} holds messages of topic {self._of.topic}, channel "
            f"{self._of.channel} that were staged for another query and never finished (log {log_id} from batch "
            f"{batch}). If that query runs, or they shall stay there, give this one a staging_location of its own. If "
            f"its checkpoint is gone, set unfinished_log=adopt to deliver them first (its last batch may then come "
            f"twice)"
        )

    def plan(self, start: Offset, shares: Mapping[str, Share]) -> Offset:
        """Write the plan of the next batch into the log; returns the one that is there."""
        offset = Offset(start.log, start.batch + 1, shares)
        if self._first_planned is None:
            self._first_planned = offset.batch
        log = self._log(offset.log)
        if offset.batch == 1:
            log.create()
        if log.write_plan(offset):
            return offset
        # Another run of this query is alive. With one plan the two do no harm to each other; Spark stops one of them.
        return log.plan_of(offset.batch) or offset

    def taken(self, offset: Offset) -> dict[str, int]:
        """How many messages a batch took from each nsqd. A part without its END record counts as it was planned."""
        log = self._log(offset.log)
        ends = {(staged.address, staged.split): log.end_of(staged) for staged in log.batch_parts(offset.batch)}
        taken = dict.fromkeys(offset.plan, 0)
        for part in offset.parts():
            end = ends.get((part.address, part.split))
            taken[part.address] += part.messages if end is None else end.taken
        return taken

    def parts(self, first: Offset | None, last: Offset) -> list[Part]:
        """The parts of the batches after ``first`` up to ``last``; makes their places in the stage.

        :param first: None if the log did not exist then
        :raises DataLost: the batch was planned, and its staged messages are gone
        """
        if not last.batch or (first is not None and (first.log, first.batch) == (last.log, last.batch)):
            return []
        log = self._log(last.log)
        # Usually one batch. The log has the plans if there are more.
        since = first.batch if first is not None and first.log == last.log else last.batch - 1
        parts = []
        for batch in range(since + 1, last.batch + 1):
            try:
                planned = log.plan_of(batch)
            except DamagedRecord:
                if batch < last.batch:
                    raise
                planned = last  # Spark's log has it, too
            if planned is None:
                lost(self._options, f"batch {batch} of log {last.log} was planned, and its staged messages are gone")
                if log.committed() >= batch or batch < last.batch:
                    continue
                log.create()
                log.write_plan(last)
                planned = last
            parts += planned.parts(self._of)
        log.make_parts(parts)
        index.make_places(log, {part.address for part in parts})
        return parts

    def commit(self, end: Offset) -> None:
        """Finish all batches up to ``end``, which Spark has finished."""
        if replace(end, plan={}) == self._committed:
            return  # this batch of the query had nothing of this log
        log = self._log(end.log)
        finished = log.committed()
        batches = [batch for batch in log.batches() if batch <= end.batch]
        for batch in batches:
            if batch > finished:
                is_own = self._first_planned is not None and batch >= self._first_planned
                for staged in log.batch_parts(batch):
                    self.has_received |= log.seal_staged(staged).taken > 0 and is_own
                    if self._options.dedupe_within:
                        index.remember(log, staged, time.time())
                    index.remember_unsure(log, staged, time.time())
        log.write_watermark(end.batch)
        for batch in batches:
            log.retire(batch)
        index.tidy(log, self._options.dedupe_within)
        self._committed = replace(end, plan={})


def lost(options: SourceOptions, what: str) -> None:
    """Raise DataLost, unless the options say to go on."""
    if options.fail_on_data_loss:
        raise DataLost(f"{what}. fail_on_data_loss=false continues without them")
    logger.error("%s; continuing without them, since fail_on_data_loss=false", what)
