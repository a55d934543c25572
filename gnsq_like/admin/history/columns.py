"""Figures over time in bounded memory: 10 s for an hour, 1 min for a day.

One column holds the figures of all series at one moment, so that memory grows with time up to its bound, and a new
topic costs one place in each later column. A series that was not seen for a day loses its place to a new one, which
does not read the older columns.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Seconds between two columns, and how many there are.
FINE_SECONDS, FINE_COUNT = 10.0, 360
COARSE_SECONDS, COARSE_COUNT = 60.0, 1440
_FINE_IN_COARSE = round(COARSE_SECONDS / FINE_SECONDS)

#: The figures of each series.
METRICS = ("depth", "in_flight", "rate", "requeued", "timed_out")

#: A topic's name, or a topic's and a channel's; () is the whole cluster.
Key = tuple[str, ...]
#: In the order of METRICS.
Figures = tuple[float, float, float, float, float]
NAN = math.nan


@dataclass(slots=True)
class Column:
    """All series at one moment."""

    #: Seconds since the epoch.
    at: float
    #: For each metric, by a series' place. float32: depths above 16 million lose their last digits.
    values: list[array[float]]


class Columns:
    """The history of one cluster.

    :param most: the number of series
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[Key, int] = {}
        #: By place: when its series got it, and when that was last seen (epoch).
        self._since: list[float] = []
        self._seen: list[float] = []
        self._free: list[int] = []
        self._fine: deque[Column] = deque(maxlen=FINE_COUNT)
        self._coarse: deque[Column] = deque(maxlen=COARSE_COUNT)
        #: The fine columns whose mean will be the next coarse one.
        self._pending: list[Column] = []
        #: Whether the last fine columns are those of an earlier process.
        self._is_restored = False

    def __len__(self) -> int:
        return len(self._places)

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns."""
        # Restored columns share their values.
        found = {id(column.values): column.values for column in (*self._fine, *self._coarse, *self._pending)}
        return sum(row.itemsize * len(row) for values in found.values() for row in values)

    def add(self, at: float, figures: Mapping[Key, Figures]) -> Column | None:
        """Add the figures of one moment.

        :returns: the coarse column that is complete now
        """
        column = self._column(at, figures)
        self._fill_gap(at)
        self._fine.append(column)
        complete = None
        if self._pending and int(at / COARSE_SECONDS) != int(self._pending[0].at / COARSE_SECONDS):
            complete = _mean(self._pending, len(self._since))
            self._coarse.append(complete)
            self._pending = []
            self._drop_old(at)
        self._pending.append(column)
        return complete

    def restore(self, at: float, figures: Mapping[Key, Figures]) -> None:
        """Add a coarse column of an earlier process; the oldest first, before any other.

        It is also repeated in the fine columns of the hour, because graphs are drawn with equal steps.
        """
        begin = at - COARSE_SECONDS + FINE_SECONDS
        self._fill_gap(begin)
        values = self._column(begin, figures).values
        self._coarse.append(Column(at, values))
        for step in reversed(range(_FINE_IN_COARSE)):
            self._fine.append(Column(at - step * FINE_SECONDS, values))
        self._is_restored = True

    def _column(self, at: float, figures: Mapping[Key, Figures]) -> Column:
        places = [(self._place(key, at), values) for key, values in figures.items()]
        column = _blank(at, len(self._since))
        for place, values in places:
            if place is not None:
                for row, value in zip(column.values, values, strict=True):
                    row[place] = value
        return column

    def _fill_gap(self, at: float) -> None:
        """Add empty columns for the time in which no process ran."""
        if not self._is_restored:
            return
        self._is_restored = False
        missing = min(FINE_COUNT, int((at - self._fine[-1].at) / FINE_SECONDS) - 1)
        for step in reversed(range(missing)):
            self._fine.append(_blank(at - (step + 1) * FINE_SECONDS, 0))

    def figures_of(self, column: Column) -> dict[Key, list[float]]:
        """The figures of a column, by series."""
        found = {}
        for key, place in self._places.items():
            values = [row[place] if place < len(row) else NAN for row in column.values]
            if not all(math.isnan(each) for each in values):
                found[key] = values
        return found

    def series(self, key: Key, metric: str, *, day: bool = False) -> list[tuple[float, float]]:
        """The times and values of a series; nan where there are none.

        :param day: the last day, minute by minute, instead of the last hour
        """
        place = self._places.get(key)
        if place is None:
            return []
        row, since = METRICS.index(metric), self._since[place]
        columns: Iterable[Column] = self._coarse if day else self._fine
        return [
            (column.at, column.values[row][place] if place < len(column.values[row]) else NAN)
            for column in columns
            if column.at >= since
        ]

    def recent(self, key: Key, metric: str, points: int) -> list[float]:
        """The last hour averaged into this many points, for small graphs."""
        values = [value for _, value in self.series(key, metric)]
        part = max(1, -(-len(values) // points))
        return [mean(values[start : start + part]) for start in range(0, len(values), part)]

    def _place(self, key: Key, at: float) -> int | None:
        place = self._places.get(key)
        if place is None:
            if self._free:
                place = self._free.pop()
            elif len(self._since) < self._most:
                place = len(self._since)
                self._since.append(at)
                self._seen.append(at)
            else:
                return None
            self._places[key] = place
            self._since[place] = at
        self._seen[place] = at
        return place

    def _drop_old(self, now: float) -> None:
        oldest = now - COARSE_SECONDS * COARSE_COUNT
        for key, place in list(self._places.items()):
            if self._seen[place] < oldest:
                del self._places[key]
                self._free.append(place)


def _blank(at: float, width: int) -> Column:
    return Column(at, [array("f", [NAN]) * width for _ in METRICS])


def _mean(columns: list[Column], width: int) -> Column:
    found = _blank(columns[-1].at, width)
    for row, values in enumerate(found.values):
        rows = [column.values[row] for column in columns]
        for place in range(width):
            values[place] = mean([each[place] for each in rows if place < len(each)])
    return found


def mean(values: Iterable[float]) -> float:
    """The mean of those that are numbers; nan if there are none."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else NAN
