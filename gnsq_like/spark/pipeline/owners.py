"""Whose a table is, and which tables a pipeline has.

::

    <table>/_pipeline/<id>              the pipeline that writes to the table: the id of its query
    <checkpoint>/tables/<table's place>     a table that this checkpoint's batches are in

Spark keeps the id in the checkpoint. So a second pipeline with the same table, which would write every message a second
time, is refused before it writes anything; and a table that is gone is missed, although its messages never come again.
Readers of tables pass over names that begin with "_". Both notes are made right before the first write.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

from gnsq_like.spark.pipeline import paths
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.tables.errors import TableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWNER = "_pipeline"


class Owner:
    """The pipeline of a checkpoint, as the owner of its tables.

    :param adopt: whether to take tables that are another pipeline's, and to make those anew that are gone
    """

    def __init__(self, checkpoint: str, *, adopt: bool = False) -> None:
        self._checkpoint = checkpoint
        self._adopt = adopt
        #: The tables that are noted as ours.
        self._taken: set[str] = set()

    def check(self, spark: SparkSession, place: str, *, exists: bool) -> None:
        """Raise NotBegun if a table is not ours, or gone. Writes nothing.

        :param exists: whether there is a table
        """
        if self._adopt or place in self._taken:
            return
        owners = paths.list_names(spark, f"{place}/{_OWNER}")
        if exists and owners:
            is_ours = self._query_id(spark) in owners
        else:  # gone, or of an earlier version, without an owner
            is_ours = bool(paths.list_names(spark, f"{self._checkpoint}/commits"))
            self._check_not_gone(spark, place, has_batches=is_ours)
        if exists and not is_ours:
            raise NotBegun(
                f"the table {place} is that of another pipeline, with another checkpoint than {self._checkpoint}: with "
                f"both, its messages would be there twice. Give data another place; or, if the other pipeline has "
                f"ended for good, or this one has lost its checkpoint, take the table over: run once with --adopt "
                f"(adopt=True)"
            )

    def _check_not_gone(self, spark: SparkSession, place: str, *, has_batches: bool) -> None:
        # Without a batch that is done, all messages come again.
        if has_batches and quote(place, safe="") in paths.list_names(spark, f"{self._checkpoint}/tables"):
            raise NotBegun(
                f"the table {place}, which the checkpoint {self._checkpoint} has batches in, is gone, and their "
                f"messages will not come again. Put it back, or have a new one made for the later messages: run once "
                f"with --adopt (adopt=True)"
            )

    def take(self, spark: SparkSession, place: str, query_id: str) -> None:
        """Note that a table is ours, before each batch; raises TableError if it has been deleted or taken since."""
        found = paths.list_names(spark, f"{place}/{_OWNER}")
        if place not in self._taken:
            if self._adopt:
                for other in set(found) - {query_id}:
                    paths.remove(spark, f"{place}/{_OWNER}/{other}")
            if query_id not in found:
                paths.write_text(spark, f"{place}/{_OWNER}/{query_id}", "")
            name = quote(place, safe="")
            if name not in paths.list_names(spark, f"{self._checkpoint}/tables"):
                paths.write_text(spark, f"{self._checkpoint}/tables/{name}", "")
            found = paths.list_names(spark, f"{place}/{_OWNER}")
            self._taken.add(place)
        if found != [query_id]:
            why = "another pipeline writes to it" if found else "it was deleted"
            raise TableError(f"the table {place} is this pipeline's no longer: {why} while the pipeline ran")

    def _query_id(self, spark: SparkSession) -> str | None:
        if "metadata" not in paths.list_names(spark, self._checkpoint):
            return None
        found: str = json.loads(paths.read_text(spark, f"{self._checkpoint}/metadata"))["id"]
        return found
