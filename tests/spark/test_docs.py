"""docs/spark.rst is true: its examples run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.pages import blocks, page, section
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_engine import PATIENT

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PAGE = page("spark.rst")


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


def run(title: str, nsqd: Running, spark: SparkSession, **given: Any) -> dict[str, Any]:
    """Run the examples of a section one after the other; returns the names that they define."""
    names: dict[str, Any] = {"spark": spark, **given}
    for block in blocks(section(PAGE, title)):
        source = block.replace("127.0.0.1:4150", nsqd.tcp_address).replace("127.0.0.1:4151", nsqd.http_address)
        exec(compile(source, "docs/spark.rst", "exec"), names)
    return names


def test_all_examples_compile() -> None:
    assert len(blocks(PAGE)) >= 6
    for block in blocks(PAGE):
        compile(block, "docs/spark.rst", "exec")


@pytest.mark.spark_long
def test_writing(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    spark.range(3).selectExpr("cast(id AS string) AS value").write.text(str(rows))
    names = run(
        "Writing", nsqd, spark, stream=spark.readStream.text(str(rows)), checkpoint=str(tmp_path / "checkpoint")
    )
    query = names["query"]
    client = NsqdHTTPClient(nsqd.http_address)
    try:
        wait_for(lambda: client.stats("clicks")["topics"][0]["message_count"] == 5, "two rows, and three", 60)
    finally:
        query.stop()


@pytest.mark.spark_long
def test_reading_a_batch(spark: SparkSession, nsqd: Running, capsys: pytest.CaptureFixture[str]) -> None:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic("clicks")
    client.create_channel("clicks", "archive")
    client.multi_publish("clicks", [b"a", b"b", b"c"])
    nsqds = {"nsqd_tcp_addresses": nsqd.tcp_address, "nsqd_http_addresses": nsqd.http_address, **PATIENT}
    run("Reading a batch", nsqd, spark, nsqds=nsqds)
    shown = capsys.readouterr().out
    assert all(f"[{byte:x}]" in shown for byte in b"abc"), shown
