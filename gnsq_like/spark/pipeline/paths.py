"""The directories of a batch, which belong to it alone.

::

    <table>/date=2026-11-21/hour=13/batch=<query>-000042/part-….parquet

Date and hour are those of ``seen_at``, in UTC: when the pipeline received the messages, not when they were published.
So a batch has one directory, an hour that is over never changes, and no message is too late. The query's id is in the
name because a query with a new checkpoint counts its batches from 0 again.
"""

from __future__ import annotations

from datetime import datetime

from gnsq_like.spark.tables.data_file import hour_directory

#: How many characters of the query's id are in a batch's name.
_ID_LENGTH = 12


def batch_name(query_id: str, number: int) -> str:
    """The name of a batch in all tables."""
    return f"{query_id.replace('-', '')[:_ID_LENGTH]}-{number:06d}"


def batch_directory(seen_at: datetime, batch: str) -> str:
    """The directory of a batch, relative to a table."""
    return f"{hour_directory(seen_at)}/batch={batch}"
