"""The live page between runs, and beside them: ``gnsq-like pipeline serve``, which needs no Spark.

A job that runs every hour is away for most of it, and its own page with it. What is known then comes from the table of
metrics, from what the last run noted about itself (``watched.last_run``), from Spark's checkpoint (whether a batch is
under way), and from the nsqds, of which nothing is created or changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
from gnsq_like.spark.pipeline.report import last_batches, read_batch
from gnsq_like.spark.pipeline.watched import by_topic, last_run
from gnsq_like.spark.source.daemons import Daemons
from gnsq_like.spark.watch.live_server import CannotServe, LiveServer
from gnsq_like.spark.watch.run_status import RunStatus

#: Seconds between two looks, at nsqds and files of this machine; and at tables elsewhere, where listing costs more.
_INTERVAL, _FAR_INTERVAL = 2.0, 30.0
#: Seconds between two checks of ``stop``.
_CHECK_INTERVAL = 0.25


def serve_pipeline(
    pipeline: Pipeline,
    address: str,
    *,
    stop: Callable[[], bool],
    on_address: Callable[[str], object] = lambda address: None,
) -> None:
    """Serve a pipeline's live page until it is stopped, whether or not a run is under way. May switch, and blocks.

    :param address: where to listen, as "127.0.0.1:9160"
    :param stop: called a few times a second
    :param on_address: called once, with the address
    :raises NotBegun: the address cannot be used
    """
    looking = Looking(pipeline, time.time())
    try:
        server = LiveServer(lambda: looking.status.current, address)
    except CannotServe as exc:
        raise NotBegun(str(exc)) from exc
    try:
        on_address(server.address)
        while not stop():
            looking.look(time.time())
            until = time.monotonic() + _INTERVAL
            while not stop() and time.monotonic() < until:
                gevent.sleep(_CHECK_INTERVAL)
    finally:
        server.close()


class Looking:
    """What can be seen of a pipeline from outside. Next: :meth:`look`, every few seconds."""

    def __init__(self, pipeline: Pipeline, now: float) -> None:
        self._pipeline = pipeline
        options = pipeline.source_options
        self._daemons = Daemons(options, creates=False)
        self._named = options.named
        #: Replaced as a run's own.
        self.status = RunStatus(pipeline.title, pipeline.watch_options, now)
        # Between runs, messages wait for the next one: that is the latency of an hourly job.
        self.status.is_ready(0.0)
        self._is_far = not pipeline.place("metrics").startswith("file://")
        self._tables_at = float("-inf")
        #: The directories of batches that were read.
        self._read: set[str] | None = None
        self._is_busy = False

    def look(self, now: float) -> None:
        """Look at everything once. May switch."""
        if not self._is_far or now - self._tables_at >= _FAR_INTERVAL:
            self._tables_at = now
            try:
                self._read_tables()
                self.status.cannot_read("")
            except PipelineFailed as exc:
                self.status.cannot_read(str(exc))
        depths = by_topic(self._named, self._daemons.depths())
        self.status.look(depths, self._daemons.away, is_busy=self._is_busy, duplicates=0, now=now)

    def _read_tables(self) -> None:
        """Read what is new. Raises PipelineFailed."""
        self._is_busy = _has_unfinished_batch(self._pipeline)
        self.status.between(last_run(self._pipeline))
        places = last_batches(self._pipeline)
        known = self._read
        new = {place: rows for place in places if known is None or place not in known if (rows := read_batch(place))}
        for rows in sorted(new.values(), key=lambda rows: rows[0].seen_at):
            if known is None:
                self.status.wrote_before(rows)
            else:
                self.status.wrote(rows)
        self._read = new.keys() | (known or set()).intersection(places)


def _has_unfinished_batch(pipeline: Pipeline) -> bool:
    """Whether Spark's checkpoint has a batch that is planned and not done. Raises PipelineFailed."""
    from pyarrow import ArrowException, fs

    from gnsq_like.spark.tables.data_file import file_system

    place = pipeline.place("checkpoint")
    try:
        system, path = file_system(place)

        def last(log: str) -> int:
            found = system.get_file_info(fs.FileSelector(f"{path}/{log}", allow_not_found=True))
            return max((int(each.base_name) for each in found if each.base_name.isdigit()), default=-1)

        # In this order: a batch that is done meanwhile is not taken for an unfinished one.
        planned = last("offsets")
        return planned > last("commits")
    except (OSError, ArrowException) as exc:
        raise PipelineFailed(f"{place} cannot be read: {exc}") from exc
