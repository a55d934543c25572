"""The source and the sink on Spark Connect, and the example of Spark's declarative pipelines, which run on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.spark.connect import connect_environment, connect_python, connect_server
from tests.spark.pipeline.killing import running
from tests.support.daemons import Running, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_engine import PATIENT, publish, source_options
from tests.support.spark_sessions import CONF, ROOT

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(900), pytest.mark.usefixtures("java")]

EXAMPLE = ROOT / "examples" / "spark_declarative"
COUNT = 2_000

ON_CONNECT = """
import json, sys
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from gnsq_like.spark import register
from gnsq_like.spark.pipeline import NotBegun, Pipeline, run_pipeline

remote, place, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark)
report = {"session": type(spark).__module__}
rows = spark.readStream.format("nsq").options(**options).load().selectExpr("cast(body AS string) AS body")
query = (
    rows.writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
    .trigger(availableNow=True).start(f"{place}/rows")
)
query.awaitTermination()
report["lag"] = json.loads(query.lastProgress["sources"][0]["latestOffset"])
rows = spark.read.parquet(f"{place}/rows")
report["bodies"] = [row.body for row in rows.collect()]
sink = {"nsqd_tcp_addresses": options["nsqd_tcp_addresses"], "topic": "back"}
rows.write.format("nsq").options(**sink).mode("append").save()
nsqds = {name: options[name] for name in ("nsqd_tcp_addresses", "nsqd_http_addresses")}
patient = {"msg_timeout": options["msg_timeout"]}
peek = spark.read.format("nsq").options(**nsqds, **patient, topic="back", channel="look").load()
report["peeked"] = peek.count()
try:
    spark.readStream.format("nsq").options(**options, staging_locatoin="/tmp").load().schema
except AnalysisException as exc:
    report["error"] = str(exc)
try:
    run_pipeline(Pipeline(location=place, source={**nsqds, "topic": "back", "channel": "table"}), spark=spark)
except NotBegun as exc:
    report["refused"] = str(exc)
with open(f"{place}/report.json", "w") as file:
    json.dump(report, file)
spark.stop()
"""


@pytest.fixture(scope="module")
def python(java: None) -> str:
    return connect_python()


@pytest.fixture(scope="module")
def server(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server's address, and the directory that has its tables."""
    directory = tmp_path_factory.mktemp("server")
    with connect_server(directory, python) as remote:
        yield remote, directory


@pytest.fixture
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as nsqd:
        yield nsqd


def run(*command: str, cwd: Path, python: str, python_path: str = str(ROOT), status: int = 0) -> str:
    environ = connect_environment(python, python_path)
    with running(*command, cwd=cwd, stderr=subprocess.STDOUT, **environ) as process:
        output, _ = process.communicate()
    assert process.returncode == status, output[-10_000:]
    return output


def is_empty(client: NsqdHTTPClient, topic: str) -> bool:
    """Whether all messages of a topic's channel were taken."""
    [found] = client.stats(topic)["topics"]
    [channel] = found["channels"]
    left = (found["depth"], channel["depth"], channel["in_flight_count"], channel["deferred_count"])
    return not any(left) and bool(found["message_count"] == channel["message_count"])


def test_streams_and_batches_on_connect(tmp_path: Path, nsqd: Running, python: str, server: tuple[str, Path]) -> None:
    remote, _ = server
    http = publish(nsqd, "connect", range(COUNT))
    http.create_topic("back")
    http.create_channel("back", "look")
    (tmp_path / "program.py").write_text(ON_CONNECT)
    given = source_options([nsqd], tmp_path, "connect", **PATIENT)
    options = {name: str(value) for name, value in given.items()}
    run(python, "program.py", remote, str(tmp_path), json.dumps(options), cwd=tmp_path, python=python)
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert "connect" in report["session"]
    assert Counter(report["bodies"]) == Counter(map(str, range(COUNT)))
    assert report["lag"] == {"connect": {nsqd.tcp_address: {"messages": 0, "in_flight": 0}}}
    assert http.stats("back")["topics"][0]["message_count"] == report["peeked"] == COUNT
    assert "did you mean staging_location" in report["error"] and "Traceback" not in report["error"]
    assert report["refused"].startswith("a session of Spark Connect cannot run a pipeline")


def test_the_declarative_example_runs_again_and_again(tmp_path: Path, nsqd: Running, python: str) -> None:
    import pyspark
    from pyarrow import dataset

    client = NsqdHTTPClient(nsqd.http_address)
    for topic in ("clicks", "checkouts"):
        client.create_topic(topic)
    client.create_channel("clicks", "table")
    place = tmp_path / "example"
    shutil.copytree(EXAMPLE, place)
    spec = (place / "spark-pipeline.yml").read_text()
    spec = spec.replace("127.0.0.1:4150", nsqd.tcp_address).replace("127.0.0.1:4151", nsqd.http_address)
    (place / "spark-pipeline.yml").write_text(spec.replace("/tmp/spark_declarative", str(tmp_path)))
    bodies = [
        json.dumps({"number": number, "page": ("/", "/cart", "/checkout")[number % 3]}).encode()
        for number in range(COUNT)
    ]
    [told] = re.findall(r"^    \$ spark-pipelines (.*)$", (place / "README.rst").read_text(), re.MULTILINE)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), *told.split()]
    command += [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    installed = tmp_path / "installed"
    installed.mkdir()
    shutil.copy(ROOT / "gnsq_like" / "spark" / "found_by_spark" / "pyspark_nsq.py", installed)
    python_path = f"{ROOT}{os.pathsep}{installed}"
    for half in (bodies[: COUNT // 2], bodies[COUNT // 2 :]):
        client.multi_publish("clicks", half)
        # A run may leave messages to the next one, if the machine is busy.
        while not is_empty(client, "clicks"):
            run(*command, cwd=place, python=python, python_path=python_path)
    refused = run(*command, "--full-refresh", "clicks", cwd=place, python=python, python_path=python_path, status=1)
    assert "TABLE_NOT_RESETTABLE" in refused
    tables = place / "spark-warehouse"
    clicks = dataset.dataset(tables / "clicks", format="parquet").to_table(columns=["number", "page"])
    assert sorted(clicks["number"].to_pylist()) == list(range(COUNT))
    pages = dataset.dataset(tables / "pages", format="parquet").to_table().to_pylist()
    assert {row["page"]: row["count"] for row in pages} == Counter(clicks["page"].to_pylist())
    checkouts = client.stats("checkouts")["topics"][0]["message_count"]
    assert checkouts == clicks["page"].to_pylist().count("/checkout")
