"""The metrics of a batch in Arrow: how tasks count messages, and the rows of the table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_like.spark.pipeline.metrics import COLUMNS, GROWTH, MOST_ATTEMPTS, SHORTEST, Group, MinuteMetrics

_KEYS = ["minute", "attempts", "latency_class", "fits"]
_LOG = math.log(GROWTH)
_SHORTEST_US = round(SHORTEST * 1e6)


def schema() -> pa.Schema:
    """The table's columns: MinuteMetrics' fields."""
    kinds: dict[str, pa.DataType] = {
        **dict.fromkeys(("minute", "seen_at", "written_at"), pa.timestamp("us", tz="UTC")),
        **dict.fromkeys(("batch_number", "messages", "rejected", "bytes", "depth"), pa.int64()),
        **dict.fromkeys(("attempts", "latencies"), pa.map_(pa.int32(), pa.int64())),
        "topic": pa.string(),
    }
    return pa.schema([(name, kinds.get(name, pa.float64())) for name in COLUMNS])


def as_rows(metrics: Iterable[MinuteMetrics]) -> pa.RecordBatch:
    """The rows of the table."""
    values = [{name: getattr(each, name) for name in COLUMNS} for each in metrics]
    for row in values:
        row |= {name: list(row[name].items()) for name in ("attempts", "latencies")}
    return pa.RecordBatch.from_pylist(values, schema())


class Counting:
    """Counts messages in groups."""

    def __init__(self) -> None:
        #: By the columns of ``_KEYS``: messages, bytes, and the shortest and the longest latency.
        self._found: dict[tuple[Any, ...], list[int]] = {}

    def add(self, topic: str, kept: Mapping[str, pa.Array], sizes: pa.Array, fits: pa.Array) -> None:
        """Count messages of a topic.

        :param kept: the columns beside the body
        :param fits: whether they are not rejected
        """
        published = kept["timestamp"].cast(pa.int64())
        latency = pc.subtract(kept["seen_at"].cast(pa.int64()), published)
        minutes = pc.floor(pc.divide(published.cast(pa.float64()), 60_000_000.0)).cast(pa.int64())
        classes = pc.floor(
            pc.divide(pc.ln(pc.divide(pc.max_element_wise(latency, _SHORTEST_US), float(_SHORTEST_US))), _LOG)
        )
        table = pa.table(
            {
                "minute": minutes,
                "attempts": pc.min_element_wise(kept["attempts"], MOST_ATTEMPTS),
                "latency_class": pc.if_else(pc.less(latency, _SHORTEST_US), 0, pc.add(classes, 1)).cast(pa.int32()),
                "fits": fits,
                "bytes": sizes,
                "latency": latency,
            }
        )
        grouped = table.group_by(_KEYS, use_threads=False).aggregate(
            [([], "count_all"), ("bytes", "sum"), ("latency", "min"), ("latency", "max")]
        )
        for row in grouped.to_pylist():
            key = (topic, *(row[name] for name in _KEYS))
            count, size, shortest, longest = self._found.get(key, (0, 0, row["latency_min"], row["latency_max"]))
            self._found[key] = [
                count + row["count_all"],
                size + (row["bytes_sum"] or 0),
                min(shortest, row["latency_min"]),
                max(longest, row["latency_max"]),
            ]

    def groups(self) -> list[Group]:
        """The counted groups."""
        found = self._found.items()
        return [
            Group(60 * minute, attempts, latency_class, fits, messages, size, shortest, longest, topic)
            for (topic, minute, attempts, latency_class, fits), (messages, size, shortest, longest) in found
        ]
