"""The table ``[table]`` of a pipeline's file: how its tables are maintained."""

from __future__ import annotations

from dataclasses import dataclass

from gnsq_like.spark.options import duration, duration_from, option, size


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The table [table]. Durations are in seconds; None: the format's default, or for ever."""

    #: How often a run does it; 0 for never.
    maintain_every: float = option(duration, 0.0)
    #: Bytes of a file of Delta.
    target_size: int = option(size(1 << 20), 128 << 20)
    #: How long an hour is over before it is compacted.
    compact_after: float = option(duration, 3600.0)
    #: How long readers may use an older version of the table.
    keep_versions: float | None = option(duration, None)
    keep_data: float | None = option(duration_from("1d"), None)
    keep_rejected: float | None = option(duration_from("1d"), None)
    keep_metrics: float | None = option(duration_from("1d"), None)
    keep_archive: float | None = option(duration_from("1d"), None)

    @property
    def hours_kept(self) -> dict[str, float]:
        """How long the tables beside ``data`` keep their hours, where that is limited."""
        kept = {"rejected": self.keep_rejected, "metrics": self.keep_metrics, "archive": self.keep_archive}
        return {what: keep for what, keep in kept.items() if keep is not None}
