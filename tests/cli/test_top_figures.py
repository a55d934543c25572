"""The rows of ``gnsq-like top``."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.admin.upstream.overview import ChannelTotal, NodeTotal, Overview, TopicTotal
from gnsq_like.cli.top_figures import KINDS, SPARK_LENGTH, Column, Row, Watch, in_order, sparkline
from gnsq_like.tools.nodes import Node

NUMBER = Column("DEPTH")


def overview(at: float, depth: int, messages: int, *, problem: str = "") -> Overview:
    """One channel of one topic on one nsqd."""
    channel = ChannelTotal("clicks", "archive", depth=depth, messages=messages, clients=1, nodes=1)
    topic = TopicTotal("clicks", messages=messages, nodes=1, channels={"archive": channel})
    node = NodeTotal(Node("host", "10.0.0.1", 4150, 4151), problem, depth, 0, messages, 1, 1, 1)
    return Overview(at, at, {"clicks": topic}, [node], idle_topics=["planned"])


def test_rates_and_time_to_drain_come_from_two_overviews() -> None:
    watch = Watch()
    first = watch.add(overview(0.0, 100, 1000))
    [row] = first.rows["channels"]
    assert (row.key, row.values["DEPTH"]) == ("clicks/archive", 100.0)
    assert math.isnan(float(row.values["IN/S"]))
    second = watch.add(overview(10.0, 60, 1010))
    [row] = second.rows["channels"]
    assert (row.values["IN/S"], row.values["OUT/S"], row.values["TO DRAIN"]) == (1.0, 5.0, 15.0)
    assert row.depths == (100, 60)
    [topic, planned] = second.rows["topics"]
    assert (topic.values["IN/S"], topic.values["OUT/S"], topic.values["TO DRAIN"]) == (1.0, 5.0, 15.0)
    assert (planned.key, planned.values["STATE"]) == ("planned", "on no nsqd")
    [node] = second.rows["nodes"]
    assert (node.key, node.values["IN/S"], node.values["STATE"]) == ("10.0.0.1:4151", 1.0, "")
    assert "1 nsqd, 1 topic, depth 60" in second.summary and second.summary.endswith(", 1/s in")


def test_rates_are_those_of_the_last_ten_seconds_and_states_those_of_the_last_minute() -> None:
    watch = Watch()
    for second in range(0, 52, 2):
        tables = watch.add(overview(float(second), 100 + second, 100 + second))
    [row] = tables.rows["channels"]
    assert (row.values["IN/S"], row.values["OUT/S"], row.values["STATE"]) == (1.0, 0.0, "stuck")
    assert len(row.depths) == SPARK_LENGTH


def test_a_node_that_does_not_answer_has_no_figures() -> None:
    watch = Watch()
    watch.add(overview(0.0, 5, 5))
    [row] = watch.add(overview(1.0, 0, 0, problem="refused")).rows["nodes"]
    assert row.values["STATE"] == "no answer"
    assert row.text(NUMBER) == "–"
    assert math.isnan(float(row.values["IN/S"]))
    assert watch.add(overview(2.0, 0, 0, problem="refused")).summary.startswith("1 nsqd (1 silent)")


def test_a_row_has_all_words_of_the_filter() -> None:
    row = Row("k", {"CLIENT": "Web-1", "CHANNEL": "clicks/archive", "RDY": 3.0})
    assert row.matches("")
    assert row.matches("web ARCH")
    assert not row.matches("web mails")


@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan))), st.booleans())
def test_rows_without_a_value_come_last(values: list[float], descending: bool) -> None:
    rows = [Row(str(number), {"DEPTH": value}) for number, value in enumerate(values)]
    found = [float(row.values["DEPTH"]) for row in in_order(rows, NUMBER, descending=descending)]
    known = sorted((value for value in values if not math.isnan(value)), reverse=descending)
    assert found[: len(known)] == known
    assert all(map(math.isnan, found[len(known) :]))


@given(st.lists(st.floats(0, 1e9), max_size=SPARK_LENGTH))
def test_a_graph_has_a_bar_for_each_value(values: list[float]) -> None:
    bars = sparkline(values)
    assert len(bars) == len(values)
    assert not any(values) or bars[values.index(max(values))] == "█"


def test_every_kind_is_sorted_by_a_column_that_it_keeps() -> None:
    for kind in KINDS.values():
        names = [column.name for column in kind.columns]
        assert {*kind.dispensable} < {*names}
        assert kind.sorted_by in {*names} - {*kind.dispensable} or kind.name == "clients"
