"""Figures over time, and what is read from them; with times that the tests choose."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.admin.admin_options import AdminOptions
from gnsq_like.admin.history.columns import COARSE_COUNT, FINE_COUNT, METRICS, Columns, Figures
from gnsq_like.admin.history.recorder import Recorder, differences
from gnsq_like.admin.history.store import Store
from gnsq_like.admin.history.trend import (
    Trend,
    drain_seconds,
    figures_of,
    states_of,
    topic_states,
    topic_trend,
    trend_of,
)
from gnsq_like.admin.upstream.departures import KEPT, Departures
from gnsq_like.admin.upstream.overview import ChannelTotal, NodeTotal, Overview, TopicTotal
from gnsq_like.admin.web import words
from gnsq_like.admin.web.drawing import chart
from gnsq_like.cluster.nodes import Node
from gnsq_like.errors import InvalidOption

START = 1_800_000_000.0


def row(depth: float) -> Figures:
    return depth, 1.0, 2.0, 0.0, 0.0


def channel(name: str = "c", **counts: int) -> ChannelTotal:
    return ChannelTotal("t", name, **{"nodes": 1, "clients": 1, **counts})


def overview(seconds: float, *channels: ChannelTotal, problem: str = "", **topic: int) -> Overview:
    """An overview of one node and, unless there are no channels, one topic."""
    found = Overview(START + seconds, seconds)
    if channels:
        total = TopicTotal("t", **{"nodes": 1, **topic}, channels={each.name: each for each in channels})
        found.topics["t"] = total
    found.nodes.append(NodeTotal(Node("h", "h", 1, 2), problem, health="OK"))
    return found


# -- columns ------------------------------------------------------------------------------------------


def test_an_hour_and_a_day_and_no_more() -> None:
    columns = Columns(10)
    for number in range(FINE_COUNT + 50):
        columns.add(START + 10 * number, {("t",): row(number)})
    hour = columns.series(("t",), "depth")
    assert len(hour) == FINE_COUNT
    assert hour[-1] == (START + 10 * (FINE_COUNT + 49), FINE_COUNT + 49)
    day = columns.series(("t",), "depth", day=True)
    # START is the beginning of a minute, and the first is the mean of its six.
    assert day[0] == (START + 50, 2.5)
    assert len(day) == (FINE_COUNT + 49) // 6


def test_a_day_is_bounded() -> None:
    columns = Columns(3)
    for minute in range(COARSE_COUNT + 100):
        for second in (0, 30):
            columns.add(START + 60 * minute + second, {("t",): row(1)})
    assert len(columns.series(("t",), "rate", day=True)) == COARSE_COUNT


def test_what_is_missing_is_a_gap() -> None:
    columns = Columns(10)
    columns.add(START, {("t",): row(1), ("u",): row(5)})
    columns.add(START + 10, {("u",): row(6)})
    columns.add(START + 20, {("t",): row(3), ("u",): row(7)})
    first, gap, last = (value for _, value in columns.series(("t",), "depth"))
    assert (first, last) == (1.0, 3.0) and math.isnan(gap)
    assert columns.series(("nope",), "depth") == []


def test_the_hour_has_what_an_earlier_process_kept() -> None:
    columns = Columns(10)
    for minute in range(90):
        columns.restore(START + 60 * minute + 50, {("t",): row(minute)})
    hour = columns.series(("t",), "depth")
    assert len(hour) == FINE_COUNT
    assert hour[:2] == [(START + 1800, 30.0), (START + 1810, 30.0)]
    assert hour[-1] == (START + 5390, 89.0)
    # Two minutes pass without a process: the steps stay equal, and the time without figures is a gap.
    columns.add(START + 5390 + 120, {("t",): row(7)})
    hour = columns.series(("t",), "depth")
    assert [round(later - at) for (at, _), (later, _) in pairwise(hour)] == [10] * (FINE_COUNT - 1)
    assert [math.isnan(value) for _, value in hour[-13:]] == [False, *[True] * 11, False]
    columns.add(START + 5390 + 160, {("t",): row(8)})  # a slow poll of this process is none
    assert [value for _, value in columns.series(("t",), "depth")[-2:]] == [7.0, 8.0]


def test_an_hour_without_a_process_is_empty() -> None:
    columns = Columns(10)
    columns.restore(START + 50, {("t",): row(1)})
    columns.restore(START + 50 + 120, {("t",): row(2)})
    assert [value for _, value in columns.series(("t",), "depth") if not math.isnan(value)] == [1.0] * 6 + [2.0] * 6
    assert len(columns.series(("t",), "depth")) == 18
    columns.add(START + 7200, {("t",): row(3)})
    assert [value for _, value in columns.series(("t",), "depth") if not math.isnan(value)] == [3.0]
    assert columns.size_bytes < 10_000


def test_no_more_series_than_allowed_and_old_places_are_used_again() -> None:
    columns = Columns(2)
    columns.add(START, {("a",): row(1), ("b",): row(2), ("c",): row(3)})
    assert len(columns) == 2 and columns.series(("c",), "depth") == []
    for minute in range(1, COARSE_COUNT + 3):
        columns.add(START + 60 * minute, {("b",): row(2)})
    assert len(columns) == 1
    at = START + 60 * (COARSE_COUNT + 5)
    columns.add(at, {("b",): row(2), ("c",): row(9)})
    # It has the place of "a", and nothing of what that held.
    assert columns.series(("c",), "depth") == [(at, 9.0)]
    assert columns.series(("c",), "depth", day=True) == []


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.integers(1, 40))
def test_small_graphs_keep_to_the_values(values: list[float], points: int) -> None:
    columns = Columns(1)
    for number, value in enumerate(values):
        columns.add(START + 10 * number, {("t",): row(value)})
    found = columns.recent(("t",), "depth", points)
    assert 1 <= len(found) <= points
    assert min(values) - 0.1 <= min(found) and max(found) <= max(values) * 1.0001 + 0.1


# -- trends -------------------------------------------------------------------------------------------


def test_the_trend_of_a_channel() -> None:
    old, new = channel(depth=100, messages=1000), channel(depth=40, messages=1060, requeued=3)
    trend = trend_of(old, new, 60.0)
    assert (trend.rate_in, trend.rate_out, trend.retries) == (1.0, 2.0, 0.05)
    assert trend.drain == 40.0
    # A steady stream is in flight, and nothing waits.
    assert trend_of(channel(messages=10, in_flight=1), channel(messages=70, in_flight=2), 60.0).drain == 0.0
    assert not trend.is_stuck and not trend.many_attempts


@pytest.mark.parametrize(
    ("depth", "rate_in", "rate_out", "expected"),
    [
        (0, 1, 0, 0.0),
        (10, 1, 2, 10.0),
        (10, 2, 2, math.inf),
        (1, 5, 1, math.inf),
    ],
)
def test_the_time_to_drain(depth: int, rate_in: float, rate_out: float, expected: float) -> None:
    assert drain_seconds(depth, rate_in, rate_out) == expected


def test_stuck_is_growing_without_an_end() -> None:
    grown = channel(depth=20, messages=20, in_flight=1)
    assert trend_of(channel(depth=10, messages=10, in_flight=1), grown, 60.0).is_stuck
    assert not trend_of(channel(depth=10, messages=10, in_flight=1), grown, 20.0).is_stuck
    assert not trend_of(
        channel(depth=10, messages=9, in_flight=1), channel(depth=20, messages=21, in_flight=1), 60
    ).is_stuck
    assert not trend_of(channel(depth=20), channel(depth=20), 60.0).is_stuck
    assert not trend_of(channel(), channel(depth=9, messages=9, paused=1), 60.0).is_stuck


def test_a_restarted_nsqd_is_no_negative_rate() -> None:
    trend = trend_of(channel(depth=5, messages=1000), channel(depth=5, messages=10), 60.0)
    assert math.isnan(trend.rate_in) and math.isnan(trend.drain)
    assert trend_of(None, channel(), 60.0).drain == 0.0


def test_words_for_what_is_unusual() -> None:
    assert states_of(channel(), Trend()) == []
    assert states_of(channel(depth=1, clients=0), Trend()) == ["no consumers"]
    assert states_of(channel(clients=0), Trend()) == []
    assert states_of(channel(paused=1), Trend()) == ["paused"]
    assert states_of(channel(paused=1, nodes=2), Trend()) == ["partly paused"]
    assert states_of(channel(), Trend(is_stuck=True, many_attempts=True)) == ["stuck", "many retries"]
    many = trend_of(channel(messages=10), channel(messages=20, requeued=30), 60.0)
    assert many.many_attempts
    topic = TopicTotal("t", nodes=2, paused=1, channels={name: channel(name, depth=1, clients=0) for name in "ab"})
    assert topic_states(topic, {}) == ["topic partly paused", "no consumers ×2"]
    assert topic_states(TopicTotal("t", depth=3, nodes=1), {}) == ["no channel"]


def test_the_admins_own_channels_are_left_out() -> None:
    peek = "admin-peek-0a0a0a0a#ephemeral"
    topic = TopicTotal("t", nodes=1, channels={"c": channel(), peek: channel(peek, depth=50, messages=9, clients=0)})
    assert topic_states(topic, {}) == []
    assert math.isnan(topic_trend(None, topic, 60.0).rate_in)
    assert ("t", peek) not in figures_of(None, overview(0, channel(), channel(peek)))


def test_figures_for_the_history() -> None:
    old = overview(0, channel(depth=5, messages=10, in_flight=2), messages=10)
    new = overview(10, channel(depth=7, messages=30, in_flight=1, requeued=5, timed_out=10), messages=30, depth=1)
    figures = figures_of(old, new)
    assert figures["t", "c"] == (7, 1, 2.0, 0.5, 1.0)
    assert figures["t",] == (8, 1, 2.0, 0.5, 1.0)
    assert figures[()] == (8, 1, 2.0, 0.5, 1.0)
    assert math.isnan(figures_of(None, new)["t",][METRICS.index("rate")])


# -- changes and alerts -------------------------------------------------------------------------------


def test_differences() -> None:
    def said(old: Overview, new: Overview) -> set[str]:
        return {
            f"{change.text} {change.topic}/{change.channel} {change.node}".strip() for change in differences(old, new)
        }

    assert said(overview(0), overview(10, channel())) == {"topic created t/"}
    assert said(overview(0, channel()), overview(10)) == {"topic deleted t/"}
    assert said(overview(0, channel()), overview(10, channel(), channel("d"))) == {"channel created t/d"}
    assert said(overview(0, channel(), channel("d")), overview(10, channel())) == {"channel deleted t/d"}
    assert said(overview(0, channel()), overview(10, channel(paused=1))) == {"channel paused t/c"}
    assert said(overview(0, channel(), paused=1), overview(10, channel())) == {"topic unpaused t/"}
    # Topics of a node that does not answer are not deleted.
    assert said(overview(0, channel()), overview(10, problem="gone")) == {"node down / h:2"}
    assert said(overview(0, problem="gone"), overview(10, channel())) == {"node up / h:2"}


class Watched:
    """A recorder with what it sends."""

    def __init__(self, depth: int = 0, store: Store | None = None) -> None:
        never: Callable[[float], Overview] = lambda _: overview(0)  # noqa: E731
        options = AdminOptions(nsqd_http_addresses=("h:1",), history_series=100, alert_depth=depth)
        self.departures = Departures()
        self.recorder = Recorder("east", never, options, lambda: self.departures, store)

    def said(self) -> list[str]:
        """Which alerts began and ended."""
        changes = reversed(self.recorder.changes.recent(100))
        return [change.text for change in changes if change.kind]


def test_an_alert_begins_and_ends_once() -> None:
    watched = Watched(depth=100)
    for number, depth in enumerate([50, 150, 50, 150, 160, 170, 50, 180, 50, 50, 50]):
        watched.recorder.add(overview(10.0 * number, channel(depth=depth, messages=1000 * number)))
    # One high value is not yet an alert, nor is one low value its end.
    assert watched.said() == ["t/c has a depth of 160", "over: t/c has a depth of 180"]
    assert watched.recorder.alerts.present == {}
    assert [change.kind for change in watched.recorder.changes.recent(5)] == ["good", "bad"]


def test_a_stuck_channel_and_a_node_that_is_down() -> None:
    watched = Watched()
    for number in range(9):
        watched.recorder.add(overview(10.0 * number, channel(depth=number, messages=number)))
    assert watched.said() == ["t/c: it grows, and nothing is finished (6 messages wait)"]
    for number in range(9, 12):
        watched.recorder.add(overview(10.0 * number, problem="refused"))
    assert "nsqd h:2 does not answer" in watched.said()
    assert repr(watched.recorder.trend("t", "c")) == repr(Trend())  # whose nan equals nothing


def test_alerts_tell_the_figure_of_today() -> None:
    watched = Watched(depth=100)
    for number, depth in enumerate([150, 150, 1500]):
        watched.recorder.add(overview(10.0 * number, channel(depth=depth)))
    ((alert, since),) = watched.recorder.alerts.present.items()
    assert (alert.text, since) == ("t/c has a depth of 1,500", START + 10)


def test_what_needs_a_look_is_an_alert() -> None:
    def alerts(*channels: ChannelTotal, name: str = "t", **topic: int) -> dict[str, str]:
        watched = Watched(depth=100)
        for seconds in (0.0, 10.0):
            found = overview(seconds)
            found.topics[name] = TopicTotal(name, nodes=1, **topic, channels={each.name: each for each in channels})
            watched.recorder.add(found)
        return {alert.name: alert.text for alert in watched.recorder.alerts.present}

    assert alerts(channel()) == {}
    assert alerts(channel(depth=3, clients=0)) == {"no_consumers": "t/c: no consumers (3 messages wait)"}
    assert alerts(channel(clients=0)) == {}
    assert alerts(depth=7) == {"no_consumers": "t has 7 messages and no channel"}
    assert alerts(channel(), depth=7) == {}  # they are on their way to the channel
    assert {*alerts(channel(), depth=100)} == {"depth"}
    assert {*alerts(channel(depth=100))} == {"depth"}
    assert alerts(channel(), paused=1, depth=5) == {"paused": "t is paused, with 5 messages in the topic"}
    assert {*alerts(channel(paused=1)), *alerts(channel(paused=1, nodes=2))} == {"paused"}
    # What explains a depth stands alone.
    assert {*alerts(channel(paused=1, clients=0, depth=100))} == {"paused"}
    assert {*alerts(channel(clients=0, depth=100))} == {"no_consumers"}
    assert {*alerts(channel(), paused=1, depth=100)} == {"paused"}
    # Made for a moment, as Celery's workers do.
    assert alerts(depth=7, name="t#ephemeral") == {}
    # Dead letters wait for a person, and not for a consumer.
    assert alerts(depth=7, name="t.dead") == alerts(channel(depth=7, clients=0), name="t.dead") == {}


# -- nsqds that leave ---------------------------------------------------------------------------------


def nsqd(name: str, *lookupds: str, **topics: bool) -> Node:
    return Node(name, name, 4150, 4151, lookupds=dict.fromkeys(lookupds, "10.0.0.1:5"), topics=topics)


def test_an_nsqd_that_leaves_is_missed_until_it_returns_or_is_dismissed() -> None:
    here = [nsqd("a", "l:1", t=False), nsqd("b", "l:1"), nsqd("c", "l:1", t=False)]
    departures = Departures()
    for now, nodes in enumerate([here, here[:1], here[:1]]):
        departures.look(nodes, {"l:1": ""}, float(now))
    assert {address: at for address, (_, at) in departures.left.items()} == {"b:4151": 1.0, "c:4151": 1.0}
    assert departures.dismiss("b:4151") and not departures.dismiss("b:4151")
    departures.look(here, {"l:1": ""}, 3.0)
    assert departures.left == {}
    departures.look(here[:2], {"l:1": ""}, 4.0)
    departures.look(here[:2], {"l:1": ""}, 3.0 + KEPT)
    assert {*departures.left} == {"c:4151"}
    departures.look(here[:2], {"l:1": ""}, 4.0 + KEPT)
    assert departures.left == {}


def test_an_nsqlookupd_that_does_not_answer_has_made_no_nsqd_leave() -> None:
    departures = Departures()
    departures.look([nsqd("a", "l:1"), nsqd("b", "l:1", "m:1")], {"l:1": "", "m:1": ""}, 0.0)
    departures.look([nsqd("b", "m:1")], {"l:1": "refused", "m:1": ""}, 1.0)
    departures.look([], {"l:1": "refused", "m:1": "refused"}, 2.0)
    assert departures.left == {}
    departures.look([], {"l:1": "", "m:1": "refused"}, 3.0)
    assert {*departures.left} == {"a:4151"}
    departures.look([], {"m:1": ""}, 4.0)
    assert {*departures.left} == {"a:4151", "b:4151"}


def test_an_nsqd_that_was_tombstoned_may_leave() -> None:
    departures = Departures()
    before = [nsqd("seen", "l:1", t=True), nsqd("told", "l:1"), nsqd("partly", "l:1", t=True, u=False)]
    departures.look(before, {"l:1": ""}, 0.0)
    departures.tombstone("told:4151")
    departures.look([], {"l:1": ""}, 1.0)
    assert {*departures.left} == {"partly:4151"}


def test_rates_are_known_ten_seconds_after_a_topic_is_seen() -> None:
    watched = Watched()
    watched.recorder.add(overview(0))
    assert all(map(math.isnan, watched.recorder.cluster_rates()))
    for number in range(3):
        channels = [channel(name, messages=1000 * number, depth=500 * number) for name in "ab"]
        watched.recorder.add(overview(10.0 + 10 * number, *channels, messages=1000 * number))
        if not number:
            assert all(map(math.isnan, watched.recorder.cluster_rates()))
    # What is finished is to be compared with what arrives in channels, where a message counts once for each.
    assert watched.recorder.cluster_rates() == (100.0, 200.0, 100.0)
    assert watched.recorder.topic_trend("t").rate_in == 100.0


def test_words_for_figures() -> None:
    assert [words.drain(each) for each in (0.0, 90.0, math.inf, math.nan)] == [
        *("empty", "1m 30s", "not falling", "not known yet"),
    ]
    assert [words.latency(each) for each in (0, 12_345, 10_019_000)] == ["–", "12.3 µs", "10.0 ms"]
    assert [words.seconds(each) for each in (0.0, 0.5, None)] == ["0 s", "500.0 ms", "–"]


def test_a_chart_of_nothing_has_no_part_of_a_message_at_its_scale() -> None:
    drawn = chart([(START, 0.0), (START + 10, 0.0)], "Depth")
    assert '<span class="most">2</span><span class="mid">1</span>' in drawn


def test_viewers_do_not_make_the_hour_shorter() -> None:
    watched = Watched()
    for number in range(100):
        watched.recorder.add(overview(number, channel(messages=number * 5)))
    assert 9 <= len(watched.recorder.columns.series(("t", "c"), "rate")) <= 12
    assert watched.recorder.trend("t", "c").rate_in == pytest.approx(5.0)
    assert watched.recorder.cluster_rates()[0] == pytest.approx(0.0)


# -- the file -----------------------------------------------------------------------------------------


def test_figures_outlive_the_process(tmp_path: Path) -> None:
    now = time.time()
    store = Store(str(tmp_path / "history"))
    store.save("east", now - 120, {("t", "c"): [1.0, 2.0, math.nan, 0.25, 0.0]})
    store.save("east", now - 60, {("t", "c"): [3.0, 2.0, 1.0, 0.0, 0.0]})
    store.save("west", now - 60, {("w",): [9.0, 0.0, 0.0, 0.0, 0.0]})
    watched = Watched(store=Store(str(tmp_path / "history")))
    assert [value for _, value in watched.recorder.columns.series(("t", "c"), "depth", day=True)] == [1.0, 3.0]
    assert math.isnan(watched.recorder.columns.series(("t", "c"), "rate", day=True)[0][1])
    assert watched.recorder.columns.series(("w",), "depth", day=True) == []


def test_departures_outlive_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = Watched(store=Store(str(tmp_path / "history")))
    before.recorder.restore()
    here = [nsqd("a", "l:1", t=False), nsqd("b", "l:1"), nsqd("c", "l:1", t=True)]
    before.departures.look(here, {"l:1": ""}, 0.0)
    before.departures.look(here[::2], {"l:1": ""}, 1.0)
    before.recorder.add(overview(0))

    after = Watched(store=Store(str(tmp_path / "history")))
    after.recorder.restore()
    # b had left; a leaves while nothing watches, and c was tombstoned.
    after.departures.look([], {"l:1": ""}, 2.0)
    assert {address: at for address, (_, at) in after.departures.left.items()} == {"b:4151": 1.0, "a:4151": 2.0}

    connection = sqlite3.connect(tmp_path / "history")
    with connection:
        connection.execute("UPDATE departures SET state = '{}'")
    connection.close()
    again = Watched(store=Store(str(tmp_path / "history")))
    again.recorder.restore()
    assert again.departures.left == {} and "cannot be read" in caplog.text


def test_a_recorder_saves_each_minute(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "history"))
    watched = Watched(store=store)
    for number in range(20):
        watched.recorder.add(overview(10.0 * number, channel(depth=number)))
    with sqlite3.connect(tmp_path / "history") as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM minutes").fetchall()
    connection.close()
    assert count == 3


def test_a_minute_that_cannot_be_read_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path / "history"))
    store.save("", time.time(), {("t",): [1.0, 0.0, 0.0, 0.0, 0.0]})
    connection = sqlite3.connect(tmp_path / "history")
    with connection:
        for number, blob in enumerate([b"junk", None, b"x\x9c\x03\x00\x00\x00\x00\x01"]):
            connection.execute("INSERT INTO minutes VALUES ('', ?, ?)", (time.time() - 100 - number, blob or b""))
    connection.close()
    assert [figures for _, figures in store.load("")] == [{("t",): (1.0, 0.0, 0.0, 0.0, 0.0)}]
    assert "cannot be read" in caplog.text


def test_a_file_that_is_no_database_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path / "history"))
    (tmp_path / "history").write_text("not a database, but long enough to be read as one" * 50)
    assert list(store.load("")) == []
    assert "cannot be read" in caplog.text


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(InvalidOption, match="history_file"):
        Store(str(tmp_path / "history"))


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", "-shm"])
def test_what_others_may_have_put_there_is_no_history(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "history"))
    tmp_path.chmod(0o777)
    (tmp_path / "elsewhere").touch()
    (tmp_path / "history").rename(tmp_path / "kept")
    os.link(tmp_path / "elsewhere", tmp_path / f"history{suffix}")
    with pytest.raises(InvalidOption, match="history_file"):
        Store(str(tmp_path / "history"))
    store.save("", time.time(), {("t",): [1.0, 0.0, 0.0, 0.0, 0.0]})
    assert list(store.load("")) == []
    assert "cannot be written" in caplog.text
    assert (tmp_path / "elsewhere").read_bytes() == b""
