"""From NSQ into a table, from there into counts, and back into NSQ."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

TCP, HTTP, STAGE = (spark.conf.get(f"clicks.{name}") for name in ("nsqd.tcp", "nsqd.http", "stage"))


# NSQ keeps no messages that were read: a full refresh would only delete the clicks.
@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def clicks() -> DataFrame:
    messages = (
        spark.readStream.format("nsq")
        .options(
            topic="clicks", channel="table", nsqd_tcp_addresses=TCP, nsqd_http_addresses=HTTP, staging_location=STAGE
        )
        .load()
    )
    click = F.from_json(F.col("body").cast("string"), "number BIGINT, page STRING")
    return messages.withColumn("click", click).select("nsqd_address", "topic", "id", "timestamp", "click.*")


@dp.materialized_view
def pages() -> DataFrame:
    return spark.read.table("clicks").groupBy("page").count()


dp.create_sink("checkouts", "nsq", {"nsqd_tcp_addresses": TCP, "topic": "checkouts"})


@dp.append_flow(target="checkouts")
def publish_checkouts() -> DataFrame:
    checkouts = spark.readStream.table("clicks").where("page = '/checkout'")
    return checkouts.selectExpr("to_json(struct(number, page)) AS body")
