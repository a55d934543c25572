"""Care of the tables beside a run: in a native thread, at most one at a time, and without an effect on the run."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_like.spark.pipeline.maintenance import maintain_tables

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline.config import Pipeline

logger = logging.getLogger(__name__)

#: Seconds that the end of a run waits for a step of it; the process may end in the middle of one.
_PATIENCE = 10.0


class Leisure:
    """The care of a pipeline's tables while it runs, as often as ``[table] maintain_every`` says.

    :raises InvalidOption: from the constructor, for a wrong value
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._every = pipeline.table_options.maintain_every
        #: The monotonic time at which it is due.
        self._due = time.monotonic() + self._every
        self._is_stopped = False
        #: The last one's end.
        self._result: Any = None

    def check(self) -> None:
        """Begin if it is time. Never switches."""
        if not self._every or time.monotonic() < self._due or not self._is_idle():
            return
        self._due = time.monotonic() + self._every
        # A native thread in a patched process, too: a greenlet would stop all others.
        self._result = gevent.get_hub().threadpool.spawn(self._work)

    def stop(self) -> None:
        """End it after its present step, if that does not take too long. May switch."""
        self._is_stopped = True
        if self._result is not None:
            self._result.wait(timeout=_PATIENCE)

    def _is_idle(self) -> bool:
        return self._result is None or self._result.ready()

    def _work(self) -> None:
        try:
            for line in maintain_tables(self._pipeline, stop=lambda: self._is_stopped):
                logger.info("%s: %s", self._pipeline.title, line)
        except Exception as exc:
            logger.warning("%s: the tables could not be maintained, and will be later: %s", self._pipeline.title, exc)
