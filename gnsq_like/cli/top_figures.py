"""What ``gnsq-like top`` shows: rows of topics, channels, clients and nodes, from one overview after the other.

The overviews and trends are the admin's, and so are the means by which a cluster is asked. Rates are those of the last
ten seconds, states those of the last minute.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gnsq_like.admin.core import Core
from gnsq_like.admin.history.trend import Trend, is_peek, states_of, topic_states, topic_trend, trend_of
from gnsq_like.admin.options import AdminOptions
from gnsq_like.admin.upstream.overview import ChannelTotal, NodeTotal, Overview, TopicTotal
from gnsq_like.admin.web.words import compact, drain
from gnsq_like.cli.changes import plural
from gnsq_like.tools.operations import Outcome, change
from gnsq_like.tools.rounds import UpstreamError

if TYPE_CHECKING:
    from gnsq_like.admin.upstream.cluster import Cluster
    from gnsq_like.tools.daemons import Daemons
    from gnsq_like.tools.figures import ChannelFigures

#: Seconds that an overview may be old.
_MAX_AGE = 0.05
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
    #: The value of a row, from what it is about: a _Topic, _Channel, _Client or _Node.
    of: Callable[[Any], Value | int] = str


def _text(name: str, of: Callable[[Any], Value]) -> Column:
    return Column(name, "text", of)


def _number(name: str, of: Callable[[Any], float]) -> Column:
    return Column(name, "number", of)


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

    def texts(self, row: Row) -> list[str]:
        """The cells of a row."""
        return [row.text(each) for each in self.columns]

    def row(self, key: str, about: object, depths: tuple[float, ...] = ()) -> Row:
        """The row of a topic, channel, client or node."""
        values = {each.name: each.of(about) for each in self.columns if each.kind != "spark"}
        return Row(key, {name: each if isinstance(each, str) else float(each) for name, each in values.items()}, depths)


class _Topic(NamedTuple):
    total: TopicTotal
    #: Without those of people who look.
    channels: list[ChannelTotal]
    trend: Trend
    states: list[str]


class _Channel(NamedTuple):
    key: str
    total: ChannelTotal
    trend: Trend
    states: list[str]


class _Client(NamedTuple):
    channel: str
    stats: Mapping[str, object]


class _Node(NamedTuple):
    total: NodeTotal
    rate: float

    def known(self, value: float) -> float:
        """The figure of a node that has answered."""
        return math.nan if self.total.problem else value

    @property
    def state(self) -> str:
        if self.total.problem:
            return "no answer"
        return "" if self.total.health in ("", "OK") else self.total.health


_GRAPH = Column("DEPTH ~", "spark")
_TRENDS = (
    _number("IN/S", lambda of: of.trend.rate_in),
    _number("OUT/S", lambda of: of.trend.rate_out),
    Column("TO DRAIN", "duration", lambda of: of.trend.drain),
)
_STATES = _text("STATE", lambda of: ", ".join(of.states))

TOPICS = Kind(
    "topics",
    (
        _text("TOPIC", lambda of: of.total.name),
        _number("DEPTH", lambda of: of.total.total_depth),
        *(_GRAPH, *_TRENDS),
        _number("IN FLIGHT", lambda of: sum(each.in_flight for each in of.channels)),
        _number("CHANNELS", lambda of: len(of.channels)),
        _number("CLIENTS", lambda of: sum(each.clients for each in of.channels)),
        _number("NSQDS", lambda of: of.total.nodes),
        _STATES,
    ),
    ("NSQDS", "CHANNELS", "CLIENTS", "IN FLIGHT", "DEPTH ~"),
    "DEPTH",
)
CHANNELS = Kind(
    "channels",
    (
        _text("CHANNEL", lambda of: of.key),
        _number("DEPTH", lambda of: of.total.depth),
        *(_GRAPH, *_TRENDS),
        _number("IN FLIGHT", lambda of: of.total.in_flight),
        _number("DEFERRED", lambda of: of.total.deferred),
        _number("REQUEUED", lambda of: of.total.requeued),
        _number("TIMED OUT", lambda of: of.total.timed_out),
        _number("CLIENTS", lambda of: of.total.clients),
        _STATES,
    ),
    ("TIMED OUT", "REQUEUED", "DEFERRED", "IN FLIGHT", "CLIENTS", "DEPTH ~"),
    "DEPTH",
)
CLIENTS = Kind(
    "clients",
    (
        _text("CLIENT", lambda of: of.stats["client_id"] or of.stats["hostname"]),
        _text("CHANNEL", lambda of: of.channel),
        _text("ADDRESS", lambda of: of.stats["remote_address"]),
        _text("NSQD", lambda of: of.stats["node"]),
        _number("IN FLIGHT", lambda of: of.stats["in_flight_count"]),
        _number("RDY", lambda of: of.stats["ready_count"]),
        _number("FINISHED", lambda of: of.stats["finish_count"]),
        _number("REQUEUED", lambda of: of.stats["requeue_count"]),
        _text("USER AGENT", lambda of: of.stats["user_agent"]),
    ),
    ("USER AGENT", "REQUEUED", "NSQD", "ADDRESS", "RDY"),
    "IN FLIGHT",
)
NODES = Kind(
    "nodes",
    (
        _text("NSQD", lambda of: of.total.node.address),
        _text("HOST", lambda of: of.total.node.hostname),
        _number("DEPTH", lambda of: of.known(of.total.depth)),
        _GRAPH,
        _number("IN/S", lambda of: of.rate),
        _number("IN FLIGHT", lambda of: of.known(of.total.in_flight)),
        _number("TOPICS", lambda of: of.known(of.total.topics)),
        _number("CHANNELS", lambda of: of.known(of.total.channels)),
        _number("CLIENTS", lambda of: of.known(of.total.clients)),
        _text("VERSION", lambda of: of.total.node.version),
        _text("STATE", lambda of: of.state),
    ),
    ("VERSION", "CHANNELS", "TOPICS", "HOST", "CLIENTS", "DEPTH ~"),
    "NSQD",
)
KINDS = {each.name: each for each in (TOPICS, CHANNELS, CLIENTS, NODES)}


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
            return value
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
            trends = {
                each.name: trend_of(oldest.channel(name, each.name), each, new.taken - oldest.taken)
                for each in channels
            }
            trend = topic_trend(before.topics.get(name), topic, new.taken - before.taken)
            about = _Topic(topic, channels, trend, topic_states(topic, trends))
            rows.append(TOPICS.row(name, about, self._spark(name, topic.total_depth, seen)))
        unknown = {column.name: math.nan for column in TOPICS.columns}
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
                minute = trend_of(oldest.channel(topic.name, name), channel, new.taken - oldest.taken)
                key = f"{topic.name}/{name}"
                about = _Channel(key, channel, trend, states_of(channel, minute))
                rows.append(CHANNELS.row(key, about, self._spark(("channel", key), channel.depth, seen)))
        return rows

    def _nodes(self, new: Overview, seen: set[Hashable]) -> list[Row]:
        before = {total.node.address: total for total in self._before.nodes}
        seconds = new.taken - self._before.taken
        rows = []
        for total in new.nodes:
            address, then = total.node.address, before.get(total.node.address)
            is_known = then is not None and not then.problem and not total.problem and seconds > 0
            came = total.messages - then.messages if is_known and then else -1
            about = _Node(total, came / seconds if came >= 0 else math.nan)
            rows.append(NODES.row(address, about, self._spark(("node", address), total.depth, seen)))
        return rows


def _summary(new: Overview, nodes: Iterable[Row]) -> str:
    rates = [rate for row in nodes if isinstance(rate := row.values["IN/S"], float) and not math.isnan(rate)]
    silent = sum(bool(total.problem) for total in new.nodes)
    return ", ".join(
        [
            plural(len(new.nodes), "nsqd") + (f" ({silent} silent)" if silent else ""),
            plural(len(new.topics), "topic"),
            f"depth {compact(float(new.depth))}",
            f"{compact(float(new.in_flight))} in flight",
            f"{compact(float(new.clients))} clients",
            *([f"{compact(sum(rates))}/s in"] if rates else []),
        ]
    )


def _clients(channels: Iterable[ChannelFigures]) -> list[Row]:
    rows = []
    for channel in channels:
        name = f"{channel.topic_name}/{channel.channel_name}"
        for client in () if is_peek(channel.channel_name) else channel.clients or ():
            rows.append(CLIENTS.row(f"{client['node']} {name} {client['remote_address']}", _Client(name, client)))
    return rows


# -- asking -----------------------------------------------------------------------------------------


class Poll:
    """Asks in a thread of its own. :meth:`take` is for one thread at a time.

    :param daemons: their addresses, and how they are asked
    """

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._core = Core(_admin_options(daemons))
        self._watch = Watch()

    def take(self, *, with_clients: bool = False) -> Tables:
        """The cluster now; what does not answer is a warning. May switch, or block.

        :raises NotRunning: after :meth:`close`, or if that comes before the answers
        """
        overview, channels, problems = self._core.run(self._ask, with_clients)
        tables = self._watch.add(overview, channels)
        tables.warnings += problems
        tables.is_silent = is_silent(overview)
        return tables

    def _ask(self, with_clients: bool) -> tuple[Overview, list[ChannelFigures], list[str]]:
        [cluster] = self._core.clusters.values()
        overview = cluster.overview(_MAX_AGE)
        return (overview, *_channels(cluster)) if with_clients else (overview, [], [])

    def change(self, action: str, topic: str, channel: str | None) -> Outcome:
        """Pause, unpause or empty a topic or channel. May switch, or block.

        :raises NSQError: none of the daemons did it
        """
        return self._core.run(change, self._daemons, action, topic, channel)

    def tcp_addresses(self) -> list[str]:
        """Those of the nsqds. May switch, or block.

        :raises Unreachable: none of the daemons answers
        """
        return [node.tcp_address for node in self._core.run(self._daemons.nodes).answers.values()]

    def close(self) -> None:
        """Close all connections. May block briefly."""
        self._core.stop()


def _channels(cluster: Cluster) -> tuple[list[ChannelFigures], list[str]]:
    try:
        return cluster.consumed_channels(_MAX_AGE).value, []
    except UpstreamError as exc:
        return [], [str(exc)]


def is_silent(overview: Overview) -> bool:
    """Whether nothing that was asked has answered."""
    if overview.lookupds:
        return all(overview.lookupds.values())
    return all(total.problem for total in overview.nodes)


def _admin_options(daemons: Daemons) -> AdminOptions:
    options: dict[str, Any] = dict(daemons.options)
    verify, cert = options["verify"], options["cert"]
    certificate, key = cert if isinstance(cert, tuple) else (cert, cert)
    return AdminOptions(
        lookupd_http_addresses=daemons.lookupd_http_addresses,
        nsqd_http_addresses=daemons.nsqd_http_addresses,
        http_client_connect_timeout=options["connect_timeout"],
        http_client_request_timeout=options["timeout"],
        http_client_tls_insecure_skip_verify=verify is False,
        http_client_tls_root_ca_file=verify if isinstance(verify, str) else "",
        http_client_tls_cert=certificate or "",
        http_client_tls_key=key or "",
    )
