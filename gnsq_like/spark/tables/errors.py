"""Errors of tables."""

from __future__ import annotations

from gnsq_like.errors import NSQError


class TableError(NSQError):
    """A table cannot be read, written or maintained; the text says which and why."""


class BatchOutOfOrder(TableError):
    """The table has a later batch of the same query than the one that is to be written."""
