"""What ``gnsq-like top`` shows: rows of topics, channels, clients and nodes, from one overview after the other.

The overviews and trends are the admin's. Rates are those of the last ten seconds, states those of the last minute.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnsq_like.admin.history.trend import Trend, is_peek, states_of, topic_states, topic_trend, trend_of
from gnsq_like.admin.web.words import compact, drain

if TYPE_CHECKING:
    from gnsq_like.admin.upstream.figures import ChannelFigures
    from gnsq_like.admin.upstream.overview import Overview

#: Seconds that states look back, and rates.
_WINDOW, _RATE_WINDOW = 60.0, 10.0
#: Depths of a small graph, and its characters.
SPARK_LENGTH = 12
_BARS = "▁▂▃▄▅▆▇█"

Value = str | float


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    #: "text", "number", "duration" or "spark"; only a spark has values of another kind.
    kind: str = "number"


def _columns(*names: str) -> tuple[Column, ...]:
    kinds = {"TO DRAIN": "duration", "DEPTH ~": "spark"}
    texts = {"TOPIC", "CHANNEL", "STATE", "CLIENT", "ADDRESS", "NSQD", "USER AGENT", "HOST", "VERSION"}
    return tuple(Column(name, "text" if name in texts else kinds.get(name, "number")) for name in names)


@dataclass(frozen=True)
class Kind:
    """One of the tables.

    :ivar columns: the first is the row's name
    :ivar dispensable: the columns that a narrow terminal does without, from the first on
    :ivar sorted_by: the column that it is sorted by at first
    """

    name: str
    columns: tuple[Column, ...]
    dispensable: tuple[str, ...]
    sorted_by: str

    def column(self, name: str) -> Column:
        """The column of this name."""
        return next(each for each in self.columns if each.name == name)


KINDS = {
    each.name: each
    for each in (
        Kind(
            "topics",
            _columns(
                *("TOPIC", "DEPTH", "DEPTH ~", "IN/S", "OUT/S", "TO DRAIN", "IN FLIGHT"),
                *("CHANNELS", "CLIENTS", "NSQDS", "STATE"),
            ),
            ("NSQDS", "CHANNELS", "CLIENTS", "IN FLIGHT", "DEPTH ~"),
            "DEPTH",
        ),
        Kind(
            "channels",
            _columns(
                *("CHANNEL", "DEPTH", "DEPTH ~", "IN/S", "OUT/S", "TO DRAIN", "IN FLIGHT"),
                *("DEFERRED", "REQUEUED", "TIMED OUT", "CLIENTS", "STATE"),
            ),
            ("TIMED OUT", "REQUEUED", "DEFERRED", "IN FLIGHT", "CLIENTS", "DEPTH ~"),
            "DEPTH",
        ),
        Kind(
            "clients",
            _columns("CLIENT", "CHANNEL", "ADDRESS", "NSQD", "IN FLIGHT", "RDY", "FINISHED", "REQUEUED", "USER AGENT"),
            ("USER AGENT", "REQUEUED", "NSQD", "ADDRESS", "RDY"),
            "IN FLIGHT",
        ),
        Kind(
            "nodes",
            _columns(
                *("NSQD", "HOST", "DEPTH", "DEPTH ~", "IN/S", "IN FLIGHT", "TOPICS", "CHANNELS", "CLIENTS"),
                *("VERSION", "STATE"),
            ),
            ("VERSION", "CHANNELS", "TOPICS", "HOST", "CLIENTS", "DEPTH ~"),
            "NSQD",
        ),
    )
}


@dataclass(frozen=True)
class Row:
    """A row: a key that stays the same, and values by column; a spark's are its depths."""

    key: str
    values: Mapping[str, Value]
    depths: tuple[float, ...] = ()

    def text(self, column: Column) -> str:
        """A cell."""
        if column.kind == "spark":
            return sparkline(self.depths)
        value = self.values[column.name]
        if isinstance(value, str):
            return "".join(each if each.isprintable() else "?" for each in value)
        return drain(value) if column.kind == "duration" else compact(value)

    def matches(self, words: str) -> bool:
        """Whether each word is in one of the texts."""
        found = " ".join(value for value in self.values.values() if isinstance(value, str)).lower()
        return all(word in found for word in words.lower().split())


def in_order(rows: Iterable[Row], column: Column, *, descending: bool) -> list[Row]:
    """Rows by a column; those without a value come last, equals are in the order of their keys."""
    found = sorted(rows, key=lambda row: row.key)
    found.sort(key=lambda row: _sort_key(row, column), reverse=descending)
    found.sort(key=lambda row: _is_unknown(row, column))
    return found


def _sort_key(row: Row, column: Column) -> tuple[float, str]:
    value = row.values[column.name]
    return (0.0, value.lower()) if isinstance(value, str) else (0.0 if math.isnan(value) else value, "")


def _is_unknown(row: Row, column: Column) -> bool:
    value = row.values[column.name]
    return isinstance(value, float) and math.isnan(value)


def sparkline(depths: Iterable[float]) -> str:
    """Numbers as bars, the highest of which is full."""
    found = [*depths]
    most = max(found, default=0) or 1
    return "".join(_BARS[min(len(_BARS) - 1, int(each / most * (len(_BARS) - 1) + 0.5))] for each in found)


@dataclass
class Tables:
    """All rows at one moment."""

    #: By the names of KINDS.
    rows: dict[str, list[Row]]
    #: Of the whole cluster.
    summary: str = ""
    warnings: list[str] = field(default_factory=list)
    #: Whether nothing that was asked has answered.
    is_silent: bool = False


class Watch:
    """Makes rows of overviews, which come in the order of their time."""

    def __init__(self) -> None:
        self._overviews: deque[Overview] = deque()
        self._depths: dict[Hashable, deque[float]] = {}

    def add(self, overview: Overview, channels: Iterable[ChannelFigures] = ()) -> Tables:
        """The rows of an overview, and of the clients of channels."""
        if self._overviews and overview.taken == self._overviews[-1].taken:
            self._overviews.pop()
        self._overviews.append(overview)
        while len(self._overviews) > 2 and overview.taken - self._overviews[1].taken >= _WINDOW:
            self._overviews.popleft()
        seen: set[Hashable] = set()
        rows = {
            "topics": self._topics(overview, seen),
            "channels": self._channels(overview, seen),
            "clients": _clients(channels),
            "nodes": self._nodes(overview, seen),
        }
        for key in [*self._depths]:
            if key not in seen:
                del self._depths[key]
        return Tables(rows, _summary(overview, rows["nodes"]), overview.warnings)

    @property
    def _before(self) -> Overview:
        """The one that rates are counted from."""
        newest = self._overviews[-1]
        return next(
            (each for each in reversed(self._overviews) if newest.taken - each.taken >= _RATE_WINDOW),
            self._overviews[0],
        )

    def _spark(self, key: Hashable, depth: float, seen: set[Hashable]) -> tuple[float, ...]:
        seen.add(key)
        depths = self._depths.setdefault(key, deque(maxlen=SPARK_LENGTH))
        depths.append(depth)
        return tuple(depths)

    def _topics(self, new: Overview, seen: set[Hashable]) -> list[Row]:
        rows = []
        before, oldest = self._before, self._overviews[0]
        for name, topic in new.topics.items():
            channels = [each for each in topic.channels.values() if not is_peek(each.name)]
            trend = topic_trend(before.topics.get(name), topic, new.taken - before.taken)
            trends = {
                each.name: trend_of(oldest.channel(name, each.name), each, new.taken - oldest.taken)
                for each in channels
            }
            rows.append(
                Row(
                    name,
                    {
                        "TOPIC": name,
                        "DEPTH": float(topic.total_depth),
                        "IN/S": trend.rate_in,
                        "OUT/S": trend.rate_out,
                        "TO DRAIN": trend.drain,
                        "IN FLIGHT": float(sum(each.in_flight for each in channels)),
                        "CHANNELS": float(len(channels)),
                        "CLIENTS": float(sum(each.clients for each in channels)),
                        "NSQDS": float(topic.nodes),
                        "STATE": ", ".join(topic_states(topic, trends)),
                    },
                    self._spark(name, topic.total_depth, seen),
                )
            )
        unknown = {column.name: math.nan for column in KINDS["topics"].columns}
        rows += [Row(name, {**unknown, "TOPIC": name, "STATE": "on no nsqd"}) for name in new.idle_topics]
        return rows

    def _channels(self, new: Overview, seen: set[Hashable]) -> list[Row]:
        before, oldest = self._before, self._overviews[0]
        rows = []
        for topic in new.topics.values():
            for name, channel in topic.channels.items():
                if is_peek(name):
                    continue
                trend = trend_of(before.channel(topic.name, name), channel, new.taken - before.taken)
                minute: Trend = trend_of(oldest.channel(topic.name, name), channel, new.taken - oldest.taken)
                key = f"{topic.name}/{name}"
                rows.append(
                    Row(
                        key,
                        {
                            "CHANNEL": key,
                            "DEPTH": float(channel.depth),
                            "IN/S": trend.rate_in,
                            "OUT/S": trend.rate_out,
                            "TO DRAIN": trend.drain,
                            "IN FLIGHT": float(channel.in_flight),
                            "DEFERRED": float(channel.deferred),
                            "REQUEUED": float(channel.requeued),
                            "TIMED OUT": float(channel.timed_out),
                            "CLIENTS": float(channel.clients),
                            "STATE": ", ".join(states_of(channel, minute)),
                        },
                        self._spark(("channel", key), channel.depth, seen),
                    )
                )
        return rows

    def _nodes(self, new: Overview, seen: set[Hashable]) -> list[Row]:
        before = {total.node.address: total for total in self._before.nodes}
        seconds = new.taken - self._before.taken
        rows = []
        for total in new.nodes:
            address, then = total.node.address, before.get(total.node.address)
            is_known = then is not None and not then.problem and not total.problem and seconds > 0
            came = total.messages - then.messages if is_known and then else -1
            unknown = math.nan if total.problem else None
            rows.append(
                Row(
                    address,
                    {
                        "NSQD": address,
                        "HOST": total.node.hostname,
                        "DEPTH": unknown or float(total.depth),
                        "IN/S": came / seconds if came >= 0 else math.nan,
                        "IN FLIGHT": unknown or float(total.in_flight),
                        "TOPICS": unknown or float(total.topics),
                        "CHANNELS": unknown or float(total.channels),
                        "CLIENTS": unknown or float(total.clients),
                        "VERSION": total.node.version,
                        "STATE": "no answer" if total.problem else "" if total.health in ("", "OK") else total.health,
                    },
                    self._spark(("node", address), total.depth, seen),
                )
            )
        return rows


def _summary(new: Overview, nodes: Iterable[Row]) -> str:
    rates = [rate for row in nodes if isinstance(rate := row.values["IN/S"], float) and not math.isnan(rate)]
    silent = sum(bool(total.problem) for total in new.nodes)
    return ", ".join(
        [
            f"{len(new.nodes)} nsqds" + (f" ({silent} silent)" if silent else ""),
            f"{len(new.topics)} topics",
            f"depth {compact(float(new.depth))}",
            f"{compact(float(new.in_flight))} in flight",
            f"{compact(float(new.clients))} clients",
            *([f"{compact(sum(rates))}/s in"] if rates else []),
        ]
    )


def _clients(channels: Iterable[ChannelFigures]) -> list[Row]:
    rows = []
    for channel in channels:
        if is_peek(channel.channel_name):
            continue
        name = f"{channel.topic_name}/{channel.channel_name}"
        for client in channel.clients or ():
            rows.append(
                Row(
                    f"{client['node']} {name} {client['remote_address']}",
                    {
                        "CLIENT": client["client_id"] or client["hostname"],
                        "CHANNEL": name,
                        "ADDRESS": client["remote_address"],
                        "NSQD": client["node"],
                        "IN FLIGHT": float(client["in_flight_count"]),
                        "RDY": float(client["ready_count"]),
                        "FINISHED": float(client["finish_count"]),
                        "REQUEUED": float(client["requeue_count"]),
                        "USER AGENT": client["user_agent"],
                    },
                )
            )
    return rows
