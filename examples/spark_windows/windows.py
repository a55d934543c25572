"""Clicks by page and five minutes of their publishing, with Spark's own windows; each click counts once.

    $ pip install ".[spark]"
    $ python windows.py /srv/pages nsqd_tcp_addresses=127.0.0.1:4150 nsqd_http_addresses=127.0.0.1:4151

It counts the clicks of the topic "clicks" that are there, and ends; run it as often as you like, or remove
``availableNow`` to let it go on. The arguments after the directory are options of the source (docs/spark.rst).

Each batch adds a row for each window and page that it has clicks of: a partial sum. So a late click changes no row, and
none is too late. A batch that is repeated after a crash has the same clicks, and overwrites its own directory.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gnsq_like.spark import register
from gnsq_like.spark.java import use_java

place, *options = sys.argv[1:]
use_java()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.appName("windows").config("spark.log.level", "ERROR").getOrCreate()
register(spark)

clicks = (
    spark.readStream.format("nsq")
    .options(topic="clicks", channel="windows", staging_location=f"{place}/stage")
    .options(**dict(option.split("=", 1) for option in options))
    .load()
    .select("timestamp", F.from_json(F.col("body").cast("string"), "page STRING, seconds BIGINT").alias("click"))
)


def add(batch, number):
    windows = batch.groupBy(F.window("timestamp", "5 minutes").alias("window"), "click.page")
    sums = windows.agg(F.count("*").alias("clicks"), F.sum("click.seconds").alias("seconds"))
    sums.coalesce(1).write.mode("overwrite").parquet(f"{place}/sums/batch={number}")


query = clicks.writeStream.foreachBatch(add).option("checkpointLocation", f"{place}/checkpoint")
query.trigger(availableNow=True).start().awaitTermination()

pages = spark.read.parquet(f"{place}/sums").groupBy("window.start", "page")
pages.agg(F.sum("clicks").alias("clicks"), F.sum("seconds").alias("seconds")).orderBy("start", "page").show(100, False)
spark.stop()
