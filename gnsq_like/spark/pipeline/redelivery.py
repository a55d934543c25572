"""Rejected messages once more, after the schema was mended: those that fit now get into the table, each once.

The table ``rejected`` stays as it is, because its hours are complete. What was redelivered is noted beside it::

    <rejected>-redelivered/
        taken/run=000001/          the messages that a run tries, with their bodies
        000001.json                written once they are there: when the run began, and with which settings
        done/run=000001/           those that fit: later runs leave them out
        000001.done                the run is complete
        rejected, metrics          as of any batch: what still does not fit

A run that was killed is completed by the next one, with the same messages under the same batch number, in the same
hour of the table. So each message gets there once.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.spark import register
from gnsq_like.spark.pipeline import paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import PipelineFailed, sentence
from gnsq_like.spark.pipeline.owners import claimed
from gnsq_like.spark.pipeline.replaying import Replayed, complete_batches
from gnsq_like.spark.pipeline.run import IDENTITY, check_settings, session_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gnsq_like.spark.pipeline.batches import WrittenBatch


def redeliver(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    log_level: str = "OFF",
    watch: Callable[[Replayed], None] = lambda replayed: None,
) -> Replayed:
    """Write the rejected messages that fit the pipeline's schema now into its tables. May switch, and blocks.

    The pipeline may run meanwhile.

    :param spark: the session; without one, a new one as for :func:`run_pipeline`
    :param watch: called at the end
    :returns: how many messages were tried, and how many of them do not fit this schema either
    :raises InvalidOption: the schema or a transformation is wrong
    :raises NotBegun: Spark does not start, or another redelivery runs
    :raises PipelineFailed: it ended by itself; another redelivery completes it
    """
    check_settings(pipeline)
    notes = pipeline.redelivered
    with claimed(notes), session_for(pipeline, spark, master, log_level) as session:
        register(session)
        try:
            redelivered = _Redelivery(pipeline, session, notes).run()
        except NSQError:
            raise
        except Exception as exc:
            raise PipelineFailed(f"{sentence(exc, notes)}. Another redelivery completes it") from exc
    watch(redelivered)
    return redelivered


class _Redelivery:
    """One redelivery.

    :param notes: where it is noted
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession, notes: str) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._notes = notes

    def run(self) -> Replayed:
        names = self._names(self._notes)
        begun = sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))
        number = begun[-1] if begun else 0
        if number and f"{number:06d}.done" not in names:  # it was killed
            self._check_same(number)
            return self._write(number)
        number += 1
        return self._write(number) if self._begin(number) else Replayed()

    # -- what is tried ------------------------------------------------------------------------------------

    def _begin(self, number: int) -> bool:
        """Note the messages to be tried; False if there are none."""
        from pyspark.sql import functions as F

        places = [each.directory for each in complete_batches(self._pipeline, self._spark, "rejected")]
        if not places:
            return False
        rows = self._spark.read.parquet(*places).drop("reason")
        if f"run={number - 1:06d}" in paths.list_names(self._spark, f"{self._notes}/done"):
            rows = rows.join(self._spark.read.parquet(f"{self._notes}/done"), list(IDENTITY), "left_anti")
        now = datetime.now(UTC)
        rows = rows.withColumn("seen_at", F.lit(now))
        taken = f"{self._notes}/taken/run={number:06d}"
        paths.write_parquet(rows, taken)
        if not self._spark.read.parquet(taken).head(1):
            return False
        noted = {"query": uuid.uuid4().hex, "settings": self._settings(), "seen_at": now.isoformat()}
        paths.write_text(self._spark, f"{self._notes}/{number:06d}.json", json.dumps(noted))
        return True

    def _check_same(self, number: int) -> None:
        """Raise InvalidOption if a run that was killed began with other settings: its table may have some rows."""
        if self._noted(number)["settings"] != self._settings():
            raise InvalidOption(
                "parse.schema",
                self._pipeline.schema,
                "a redelivery was ended half-way with another schema or transformation: let one with those complete it",
            )

    def _note_done(self, number: int, messages: DataFrame) -> None:
        paths.write_parquet(messages, f"{self._notes}/done/run={number:06d}")
        paths.write_text(self._spark, f"{self._notes}/{number:06d}.done", "")

    def _taken(self, number: int) -> DataFrame:
        return self._spark.read.parquet(f"{self._notes}/taken/run={number:06d}")

    def _names(self, directory: str) -> list[str]:
        return paths.list_names(self._spark, directory)

    def _noted(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(paths.read_text(self._spark, f"{self._notes}/{number:06d}.json"))
        return found

    def _settings(self) -> str:
        own = [self._pipeline, *map(self._pipeline.for_topic, self._pipeline.topics)]
        settings = [[each.schema, each.timestamp_unit, dict(each.transform), each.place("data")] for each in own]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()

    # -- what becomes of it -------------------------------------------------------------------------------

    def _write(self, number: int) -> Replayed:
        from gnsq_like.spark.pipeline.batches import BatchWriter

        taken = self._taken(number)
        beside: dict[str, Any] = {name: f"{self._notes}/{name}" for name in ("rejected", "metrics")}
        written: list[WrittenBatch] = []
        pipeline = replace(
            self._pipeline, **beside, dead_letters={}, archive="", stop_above=1.0, topics=_patient(self._pipeline)
        )
        writer = BatchWriter(pipeline, lambda: None, written.append)
        query_id = self._noted(number)["query"]
        writer.belongs_to(query_id)
        writer(taken, number)
        [batch] = written
        fitting = taken.select(*IDENTITY)
        if batch.rejected:
            again = paths.batch_path(beside["rejected"], batch.rows[0].seen_at, paths.batch_name(query_id, number))
            fitting = fitting.join(self._spark.read.parquet(again), list(IDENTITY), "left_anti")
        self._note_done(number, fitting)
        return Replayed().plus(batch)


def _patient(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """The settings of topics, without the share at which a schema counts as wrong."""
    return {
        topic: {key: value for key, value in given.items() if key != "stop_above"}
        for topic, given in pipeline.topics.items()
    }
