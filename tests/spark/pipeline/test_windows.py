"""Sums by window: what is refused, what a batch adds, each batch once, and the view in Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, load_pipeline, replay
from gnsq_like.spark.pipeline.batches import BatchWriter
from gnsq_like.spark.pipeline.maintenance import maintain_tables
from gnsq_like.spark.pipeline.windows import check_windows
from tests.support.pages import blocks, page, section
from tests.support.window_tables import FORMATS, WINDOW, query, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "page STRING NOT NULL, seconds INT, at TIMESTAMP, price DECIMAL(10,2), weight DOUBLE"
SEEN = datetime(2026, 11, 21, 13, 59, 59, 999999, UTC)


def pipeline_at(directory: Path, format: str = "parquet", **fields: Any) -> Pipeline:
    source = {"topic": "clicks", "channel": "table", "lookupdHttpAddresses": "127.0.0.1:1"}
    given = {"location": str(directory), "format": format, "source": source, "schema": SCHEMA}
    return Pipeline(**{**given, "windows": {"pages": WINDOW}, **fields})


# -- without Spark ----------------------------------------------------------------------------------------

C = {"c": "count(*)"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"Pages": {}}, "windows.Pages='Pages': the name must have lower-case letters"),
        ({"p": 5}, r"windows.p=5: it must be a table: \[windows.p\]"),
        ({"p": {"len": "5m"}}, "windows.p.len='5m': there is no such key; did you mean length?"),
        ({"p": {"columns": C}}, "windows.p.length=None: it must be given"),
        ({"p": {"length": "0.5s", "columns": C}}, "windows.p.length='0.5s': it must be given, as whole seconds"),
        ({"p": {"length": "5m"}}, "windows.p.columns=None: it must be a table of what is added up"),
        ({"p": {"length": "5m", "columns": {"a": "avg(x)"}}}, "averages cannot be added: use sum and count"),
        ({"p": {"length": "5m", "columns": {"a": "count(DISTINCT x)"}}}, "counts of different values cannot be added"),
        ({"p": {"length": "5m", "columns": {"a": "x"}}}, "it must be one of count, sum, min, max of an expression"),
        ({"p": {"length": "5m", "columns": {"a": "sum(*)"}}}, r"sum needs an expression"),
        ({"p": {"length": "5m", "columns": C, "by": "page"}}, "it must be a list of expressions"),
        ({"p": {"length": "5m", "columns": C, "by": ["lower(page)"]}}, "give it a name: … AS name"),
        ({"p": {"length": "5m", "columns": C, "by": ["a.x", "b.x"]}}, "there are two columns x"),
        ({"p": {"length": "5m", "columns": C, "by": ["x AS c"]}}, "there is another column of this name"),
        ({"p": {"length": "5m", "columns": C, "by": ["x AS date"]}}, "there is another column of this name"),
        ({"p": {"length": "5m", "columns": {"No": "count(*)"}}}, "it must have lower-case letters"),
    ],
)
def test_wrong_tables_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        check_windows(given)


def test_the_file_and_the_places(tmp_path: Path) -> None:
    [toml] = blocks(section(page("pipeline.rst"), "Sums by window"), "toml")
    path = tmp_path / "pipeline.toml"
    head = f'location = "{tmp_path}"\n[source]\nchannel = "c"\nlookupdHttpAddresses = "127.0.0.1:1"\n'
    path.write_text(
        f"{head}topic = 't'\n{toml}\nplace = 'sums'\n[windows.other]\nlength = '1h'\ncolumns.n = 'count(*)'\n"
    )
    pipeline = load_pipeline(path)
    assert pipeline.windows["pages"] == {**WINDOW, "place": f"{tmp_path}/sums"}
    assert pipeline.for_window("pages").place("data") == f"file://{tmp_path}/sums"
    assert pipeline.for_window("other").place("data") == f"file://{tmp_path}/data-windows/other"
    path.write_text(f"{head}[topics.a]\n[topics.b.windows.own]\nlength = '1h'\ncolumns = {{ n = 'count(*)' }}\n{toml}")
    a, b = (load_pipeline(path).for_topic(topic) for topic in "ab")
    assert (list(a.windows), list(b.windows)) == (["pages"], ["own"])
    assert a.for_window("pages").place("data") == f"file://{tmp_path}/data-windows/pages/a"
    assert b.for_window("own").place("data") == f"file://{tmp_path}/data-windows/own/b"
    with pytest.raises(InvalidOption, match=r"topics\.b\.windows\.own\.length"):
        pipeline_at(tmp_path, source=a.source, topics={"b": {"windows": {"own": {}}}})


def test_each_table_has_a_place_of_its_own(tmp_path: Path) -> None:
    placed = {**WINDOW, "place": f"{tmp_path}/sums"}
    topics = {"a": {}, "b": {"windows": {"pages": placed}}}
    source = {"channel": "c", "lookupdHttpAddresses": "127.0.0.1:1"}
    pipeline = pipeline_at(tmp_path, source=source, topics=topics, windows={"pages": placed})
    places = [pipeline.for_topic(topic).for_window("pages").place("data") for topic in "ab"]
    assert places == [f"file://{tmp_path}/sums/a", f"file://{tmp_path}/sums"]
    for windows, said in (
        (
            {"pages": {**WINDOW, "place": f"{tmp_path}/data/"}},
            "windows.pages.place=.*that is the table of the pipeline",
        ),
        ({"pages": placed, "others": placed}, "windows.others.place=.*that is the table of windows.pages"),
    ):
        with pytest.raises(InvalidOption, match=f"{said}: give each its own"):
            pipeline_at(tmp_path, windows=windows)


# -- with Spark -------------------------------------------------------------------------------------------


def writer_of(pipeline: Pipeline) -> BatchWriter:
    writer = BatchWriter(pipeline, lambda: None, lambda written: None)
    writer.belongs_to("01234567-89ab")
    return writer


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"by": ["pgae"]}, r"windows.pages=.*A column, variable, or function parameter with name `pgae`"),
        ({"by": ["weight"]}, "windows.pages.by='weight': DOUBLE cannot be a key: CAST it to STRING"),
        ({"columns": {"x": "sum(page)"}}, r"windows.pages.columns.x='sum\(page\)': sum of STRING cannot be added"),
        ({"columns": {"x": "min(page)"}}, "min of STRING cannot be added"),
        ({"columns": {"x": "sum(sum(seconds))"}}, "GROUP BY"),
        ({"columns": {"x": "sum(rand())"}}, r"it calls rand\(\), so a repeated batch would give other rows"),
        ({"where": "at < now()"}, r"it calls now\(\)"),
        ({"time": "page"}, "windows.pages.time='page': it must be a TIMESTAMP"),
    ],
)
def test_sums_that_cannot_be_made_are_refused_before_the_first_batch(
    spark: SparkSession, tmp_path: Path, window: dict[str, Any], said: str
) -> None:
    pipeline = pipeline_at(tmp_path, windows={"pages": {**WINDOW, **window}})
    with pytest.raises(InvalidOption, match=said):
        writer_of(pipeline).check(spark)


def test_so_are_those_of_topics_that_a_pattern_has_not_found_yet(spark: SparkSession, tmp_path: Path) -> None:
    source = {"topicsPattern": "c.*", "channel": "table", "lookupdHttpAddresses": "127.0.0.1:1"}
    windows = {"pages": {**WINDOW, "by": ["pgae"]}}
    with pytest.raises(InvalidOption, match=r"windows\.pages=.*`pgae`"):
        writer_of(pipeline_at(tmp_path, source=source, table_by_topic=True, windows=windows)).check(spark)


def messages(spark: SparkSession, count: int, topic: str = "clicks", seen_at: datetime = SEEN) -> DataFrame:
    """Clicks of two pages, one each second; each tenth does not fit."""
    seconds = "if(id % 10 = 9, '\"x\"', string(id))"
    body = f"concat('{{\"page\": \"', if(id % 2 = 0, '/', '/a'), '\", \"seconds\": ', {seconds}, '}}')"
    return spark.range(count).selectExpr(
        "lpad(id, 16, '0') AS id",
        f"encode({body}, 'UTF-8') AS body",
        "timestamp_seconds(1795269600 + id) AS timestamp",
        "1 AS attempts",
        f"'{topic}' AS topic",
        "'c' AS channel",
        "'n' AS nsqd_address",
        f"timestamp '{seen_at.isoformat()}' AS seen_at",
    )


def expected_of(count: int, times: int = 1) -> dict[Any, Any]:
    """What the view says of these messages, that many times."""
    found: dict[Any, list[int]] = {}
    for number in range(count):
        if number % 10 != 9:
            start = datetime.fromtimestamp((1795269600 + number) // 300 * 300, UTC)
            found.setdefault((start, "/a" if number % 2 else "/"), []).append(number)
    return {key: (len(each) * times, sum(each) * times, max(each)) for key, each in found.items()}


@pytest.mark.parametrize("format", FORMATS)
def test_each_batch_is_added_once_wherever_it_was_killed(spark: SparkSession, format: str, tmp_path: Path) -> None:
    pipeline = pipeline_at(tmp_path, format)
    made = messages(spark, 700)
    # Killed between the commit of the rows, which this writes alone, and that of the sums.
    writer_of(replace(pipeline, windows={}))(made, 3)
    # Then between the commit of the sums and the metrics: by a new writer each time, as after a kill.
    for number in (3, 3, 4):
        writer = writer_of(pipeline)
        writer.check(spark)
        writer(made, number)
    expected = expected_of(700, times=2)
    assert totals(pipeline) == expected
    assert query(pipeline, "SELECT count(*), count(DISTINCT window_end - window_start) FROM partial") == [(12, 1)]
    if format == "parquet":
        place = pipeline.for_window("pages").place("data")
        [view] = [
            each for each in blocks(section(page("pipeline.rst"), "Sums by window"), "sql") if "TEMPORARY" in each
        ]
        spark.sql(view.replace("/srv/clicks/data-windows/pages", place))
        rows = spark.sql("SELECT *, unix_seconds(window_start) AS start FROM pages").collect()
        spark.catalog.dropTempView("pages")
        found = {(datetime.fromtimestamp(row["start"], UTC), row["page"]): row for row in rows}
        assert {key: (row["clicks"], row["seconds"], row["longest"]) for key, row in found.items()} == expected
    # A later batch, so that the hour is complete; then it is folded, but for plain files.
    later = SEEN + timedelta(days=3)
    writer_of(pipeline)(messages(spark, 20, seen_at=later), 5)
    lines = list(maintain_tables(pipeline, now=later + timedelta(minutes=1)))
    assert ("pages: 2026-11-21: 12 rows folded into 6" in lines) == (format != "parquet")
    for key, (clicks, seconds, longest) in expected_of(20).items():
        before = expected[key]
        expected[key] = (before[0] + clicks, before[1] + seconds, max(before[2], longest))
    assert totals(pipeline) == expected
    # The number of the last batch is known after that, too.
    writer_of(pipeline)(messages(spark, 20, seen_at=later), 5)
    assert totals(pipeline) == expected


def test_a_table_s_definition_stays(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_at(tmp_path)
    writer_of(pipeline)(messages(spark, 20), 0)

    def changed(**window: Any) -> Callable[[], None]:
        other = replace(pipeline, windows={"pages": {**WINDOW, **window}})
        return lambda: writer_of(other).check(spark)

    for window, said in (
        ({"length": "10m"}, "length differs from the table's"),
        ({"by": ["page", "nsq.topic"]}, "by differs"),
        (
            {"columns": {"clicks": "count(*)", "seconds": "max(seconds)", "longest": "max(seconds)"}},
            "columns.seconds differs",
        ),
        ({"columns": {"clicks": "count(*)"}}, "columns.seconds differs"),
    ):
        with pytest.raises(InvalidOption, match=f"{said}.*give the window another name"):
            changed(**window)()
    wider = {**WINDOW["columns"], "shortest": "min(seconds)"}  # type: ignore[dict-item]
    writer_of(replace(pipeline, windows={"pages": {**WINDOW, "columns": wider}}))(messages(spark, 20), 1)
    assert totals(pipeline) == expected_of(20, times=2)
    assert query(pipeline, "SELECT min(shortest), count(shortest), count(*) FROM partial") == [(0, 2, 4)]


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_another_table_is_no_place_for_them(spark: SparkSession, tmp_path: Path, format: str) -> None:
    writer_of(pipeline_at(tmp_path, format, windows={}))(messages(spark, 20), 0)
    other = pipeline_at(tmp_path / "other", format, windows={"pages": {**WINDOW, "place": f"{tmp_path}/data"}})
    with pytest.raises(InvalidOption, match="the table there has no sums by window"):
        writer_of(other).check(spark)


def test_a_replay_has_sums_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    window = {**WINDOW, "place": f"{tmp_path}/sums"}
    pipeline = pipeline_at(tmp_path, windows={"pages": window}, archive=f"{tmp_path}/archive")
    writer_of(pipeline)(messages(spark, 40), 0)
    start = datetime(2020, 1, 1, tzinfo=UTC)
    where = "unix_seconds(timestamp) < 1795269620"
    replayed = replay(
        pipeline, start=start, end=datetime(2100, 1, 1, tzinfo=UTC), where=where, into=f"{tmp_path}/again", spark=spark
    )
    assert (replayed.messages, replayed.rejected) == (20, 2)
    assert totals(pipeline) == expected_of(40)
    assert totals(replace(pipeline, data=f"{tmp_path}/again", windows={"pages": WINDOW})) == expected_of(20)


def test_they_add_up_what_a_transformation_made_and_each_topic_s_own(spark: SparkSession, tmp_path: Path) -> None:
    sql = "SELECT upper(page) AS page, explode(array(seconds, 1000)) AS seconds FROM messages WHERE seconds > 4"
    window = {**WINDOW, "where": "seconds >= 1000 OR page = '/A'", "time": "nsq.seen_at"}
    source = {"topicsPattern": "c.*", "channel": "table", "lookupdHttpAddresses": "127.0.0.1:1"}
    pipeline = pipeline_at(
        tmp_path, source=source, table_by_topic=True, transform={"sql": sql}, windows={"pages": window}
    )
    both = messages(spark, 20).unionByName(messages(spark, 8, topic="c2"))
    writer = writer_of(pipeline)
    writer.check(spark)
    writer(both, 0)
    start = SEEN.replace(minute=55, second=0, microsecond=0)
    odd = [5, 7, 11, 13, 15, 17]
    assert totals(pipeline.for_topic("clicks")) == {
        (start, "/"): (7, 7000, 1000),
        (start, "/A"): (12, sum(odd) + 6000, 1000),
    }
    assert totals(pipeline.for_topic("c2")) == {(start, "/"): (1, 1000, 1000), (start, "/A"): (4, 5 + 7 + 2000, 1000)}
    # An expression that fails ends the run, as in a transformation.
    wrong = replace(pipeline_at(tmp_path / "wrong"), windows={"pages": {**WINDOW, "by": ["1 div 0 AS page"]}})
    with pytest.raises(PipelineFailed):
        writer_of(wrong)(messages(spark, 20), 0)
    assert not (tmp_path / "wrong" / "metrics").exists()
