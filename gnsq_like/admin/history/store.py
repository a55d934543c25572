"""An SQLite file for state that outlives the process: a row of figures for each minute of a day, and departures."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from gnsq_like.admin.history.columns import COARSE_COUNT, COARSE_SECONDS, NAN, Figures, Key
from gnsq_like.admin.upstream.departures import Departures
from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.files import NotOurs, check_own

logger = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS minutes (cluster TEXT NOT NULL, at REAL NOT NULL, figures BLOB NOT NULL,
                                    PRIMARY KEY (cluster, at));
CREATE TABLE IF NOT EXISTS departures (cluster TEXT NOT NULL PRIMARY KEY, state TEXT NOT NULL)
"""
#: Files that SQLite reads beside its own: it would copy what another user puts there into the database.
_BESIDE = ("-journal", "-wal", "-shm")
#: Bytes of the largest row that is read: 5,000 series take 500 KB.
_MOST_BYTES = 64 * 1024 * 1024


class Store:
    """The file; used in the core's thread only.

    :raises InvalidOption: if it cannot be opened, or is another kind of file
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            with self._connected() as connection:
                connection.executescript(_SCHEMA)
        except (sqlite3.Error, NotOurs) as exc:
            raise InvalidOption("history_file", path, f"it cannot be used: {exc}") from None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        for suffix in ("", *_BESIDE):
            check_own(self._path + suffix)
        with closing(sqlite3.connect(self._path, timeout=1.0)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=OFF")  # a crash of the machine may cost the last minutes
            yield connection

    def save(self, cluster: str, at: float, figures: Mapping[Key, list[float]]) -> None:
        """Add a minute, and drop those that are older than a day. An error is logged."""
        rows = [[*key, [_plain(value) for value in values]] for key, values in figures.items()]
        blob = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1)
        try:
            with self._connected() as connection, connection:
                connection.execute("INSERT OR REPLACE INTO minutes VALUES (?, ?, ?)", (cluster, at, blob))
                oldest = at - COARSE_SECONDS * COARSE_COUNT
                connection.execute("DELETE FROM minutes WHERE cluster = ? AND at < ?", (cluster, oldest))
        except (sqlite3.Error, NotOurs) as exc:
            logger.error("the history file %s cannot be written: %s", self._path, exc)

    def save_departures(self, cluster: str, state: Mapping[str, Any]) -> None:
        """Keep this state of the Departures, instead of the one before. An error is logged."""
        try:
            with self._connected() as connection, connection:
                connection.execute("INSERT OR REPLACE INTO departures VALUES (?, ?)", (cluster, json.dumps(state)))
        except (sqlite3.Error, NotOurs) as exc:
            logger.error("the history file %s cannot be written: %s", self._path, exc)

    def restore_departures(self, cluster: str, departures: Departures) -> None:
        """Load the kept state into the Departures, if there is one. An error is logged."""
        try:
            with self._connected() as connection:
                rows = connection.execute("SELECT state FROM departures WHERE cluster = ?", (cluster,)).fetchall()
            for (state,) in rows:
                departures.restore(json.loads(state))
        except (sqlite3.Error, NotOurs, ValueError, TypeError, KeyError, AttributeError) as exc:
            logger.error("the departures in the history file %s cannot be read: %r", self._path, exc)

    def load(self, cluster: str) -> Iterator[tuple[float, dict[Key, Figures]]]:
        """The minutes of the last day, the oldest first. A row that cannot be read is left out."""
        oldest = time.time() - COARSE_SECONDS * COARSE_COUNT
        query = "SELECT at, figures FROM minutes WHERE cluster = ? AND at >= ? ORDER BY at"
        try:
            with self._connected() as connection:
                for at, blob in connection.execute(query, (cluster, oldest)):
                    try:
                        yield float(at), _read(blob)
                    except (ValueError, TypeError, zlib.error) as exc:
                        logger.error("the history file %s has a minute that cannot be read: %r", self._path, exc)
        except (sqlite3.Error, NotOurs) as exc:
            logger.error("the history file %s cannot be read: %s", self._path, exc)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


def _read(blob: bytes) -> dict[Key, Figures]:
    text = zlib.decompressobj().decompress(blob, _MOST_BYTES)
    found: dict[Key, Figures] = {}
    for *key, values in json.loads(text):
        depth, in_flight, rate, requeued, timed_out = (NAN if each is None else float(each) for each in values)
        found[tuple(map(str, key))] = (depth, in_flight, rate, requeued, timed_out)
    return found
