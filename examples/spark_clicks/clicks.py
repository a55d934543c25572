"""Counting clicks: from NSQ through a pipeline into Parquet, and queries of the table. A notebook as a script.

    $ pip install ".[pipeline]"
    $ python clicks.py                                # starts an nsqd of its own, on free ports
    $ python clicks.py 127.0.0.1:4150 127.0.0.1:4151  # or uses yours: its TCP and HTTP addresses

It needs Java 17 or newer (``python -m gnsq_like.spark.java`` prints the one that is used).
"""

# %% The addresses of NSQ, and the directory of the table
import json
import os
import random
import sys
import tempfile
from contextlib import ExitStack

from gnsq_like import NsqdHTTPClient, Producer
from gnsq_like.testing import running_nsqd

place = tempfile.mkdtemp(prefix="spark-clicks-")
daemons = ExitStack()
if len(sys.argv) == 3:
    tcp_address, http_address = sys.argv[1:]
else:
    nsqd = daemons.enter_context(running_nsqd())
    tcp_address, http_address = nsqd.tcp_address, nsqd.http_address

# %% The channel must exist before the clicks: NSQ keeps nothing for a channel that does not exist
topic = "clicks"
client = NsqdHTTPClient(http_address)
client.create_topic(topic)
client.create_channel(topic, "table")

# %% Some clicks, as a web server would publish them; one in a thousand is broken
rng = random.Random(7)
pages = ["/", "/cart", "/search", "/help"]


def click(number):
    if number % 1000 == 999:
        return b'{"number": oops'
    return json.dumps({"number": number, "user": f"user-{rng.randrange(100)}", "page": rng.choice(pages)}).encode()


clicks = 20_000
with Producer(tcp_address) as producer:
    for start in range(0, clicks, 1000):
        producer.multi_publish(topic, [click(number) for number in range(start, start + 1000)])

# %% The pipeline. Clicks that do not fit the schema go to the topic "clicks.dead", with the reason
from gnsq_like.spark.pipeline import Pipeline, run_pipeline  # noqa: E402

pipeline = Pipeline(
    location=place,
    source={
        "topic": topic,
        "channel": "table",
        "nsqd_tcp_addresses": tcp_address,
        "nsqd_http_addresses": http_address,
    },
    schema="number BIGINT NOT NULL, user STRING NOT NULL, page STRING",
    dead_letters={"topic": "clicks.dead"},
)

# %% Spark; a notebook on a cluster has a session already
from pyspark.sql import SparkSession  # noqa: E402

from gnsq_like.spark.java import use_java  # noqa: E402

use_java()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = (
    SparkSession.builder.appName("clicks")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)

# %% Write the clicks that are there now; call it again, or without available_now, for later ones
last = run_pipeline(pipeline, spark=spark, available_now=True)
print(f"{last.messages} messages, {last.rejected} of them rejected")

# %% Which pages? A message's JSON is in the column body
table = spark.read.parquet(pipeline.place("data"))
table.groupBy("body.page").count().orderBy("page").show()

# %% How long did they take, by the minute of publishing?
spark.read.parquet(pipeline.place("metrics")).select("minute", "messages", "rejected", "latency_p50").show()

# %% Why were some rejected?
spark.read.parquet(pipeline.place("rejected")).groupBy("reason").count().show(truncate=False)

# %% Is every click in the table once?
numbers = table.select("body.number")
assert numbers.count() == numbers.distinct().count() == clicks - clicks // 1000
print("every click once")

# %% The end
spark.stop()
daemons.close()
