"""One run of ``gnsq-like pipeline demo``: publishes clicks, runs a pipeline, and checks the table.

In order: start the daemons; create the topic and the channel everywhere; have another consumer requeue some clicks, so
that they are delivered again; once the pipeline has written these, publish the others from a thread; end the run when
it has as many messages as were published; read the table with pyarrow, and count.

Clicks are numbered. A click that is not JSON, or lacks its user, has to be among the rejected ones; all others have
to be in the table; each of them once.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnsq_like import Producer, Reader
from gnsq_like.cli.cluster_processes import ClusterProcesses
from gnsq_like.cli.screen import View
from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, Snapshot, run_pipeline

TOPIC, CHANNEL, DEAD = "clicks", "table", "clicks.dead"
SCHEMA = "number BIGINT NOT NULL, user STRING NOT NULL, page STRING, at DOUBLE, ms INT"

#: One in this many clicks is not JSON, lacks its user, or is deferred.
_BROKEN_EVERY, _NO_USER_EVERY, _DEFERRED_EVERY = 2000, 3000, 500
#: Seconds for which those are deferred.
_DEFER = 5.0
#: The share of clicks that is published before the pipeline starts, and how many of these are requeued once.
_EARLY_SHARE, _REQUEUED = 0.1, 300
#: Seconds between two publishes, and between two batches.
_PUBLISH_INTERVAL, _TRIGGER = 0.1, 2.0
#: Seconds without progress after which it ends with an error; the first batch takes long on a busy machine.
_PATIENCE = 180.0
#: Bytes of a click, roughly.
_CLICK_BYTES = 200

_PAGES = ("/", "/cart", "/search", "/item/1", "/item/2", "/help")


@dataclass(frozen=True)
class PipelinePlan:
    """The command's options."""

    messages: int
    nsqds: int
    #: Of publishing.
    seconds: float
    #: A directory; "" for a new one.
    location: str


@dataclass(frozen=True)
class TableVerdict:
    """The result, by the table at the end."""

    lines: list[str]
    exit_status: int


def click_of(number: int, rng: random.Random) -> bytes:
    """The click of this number."""
    if number % _BROKEN_EVERY == _BROKEN_EVERY - 1:
        return b'{"number": %d, "user": ' % number
    click = {
        "number": number,
        "user": f"user-{rng.randrange(5000):04d}",
        "page": rng.choice(_PAGES),
        "at": round(time.time(), 3),
        "ms": int(rng.lognormvariate(5, 0.6)),
        "agent": "Mozilla/5.0",
    }
    if number % _NO_USER_EVERY == _NO_USER_EVERY - 1:
        del click["user"]
    body = json.dumps(click)
    return (body[:-1] + ', "filler": "' + "." * max(0, _CLICK_BYTES - len(body) - 15) + '"}').encode()


def is_good(number: int) -> bool:
    """Whether the click of this number fits the schema."""
    return number % _BROKEN_EVERY != _BROKEN_EVERY - 1 and number % _NO_USER_EVERY != _NO_USER_EVERY - 1


class Publisher:
    """Publishes the clicks in a thread, because the main thread waits for Spark and runs no hub."""

    def __init__(self, plan: PipelinePlan, addresses: list[str]) -> None:
        self._plan = plan
        self._producer = Producer(addresses)
        self._rng = random.Random(0)
        self._thread = threading.Thread(target=self._work, name="clicks", daemon=True)
        self._stopped = threading.Event()
        #: How many were published.
        self.count = 0
        self.error: NSQError | None = None

    def publish(self, count: int) -> None:
        """Publish the next clicks."""
        numbers = range(self.count, self.count + count)
        later = [number for number in numbers if number % _DEFERRED_EVERY == _DEFERRED_EVERY - 1]
        now = [click_of(number, self._rng) for number in numbers if number not in later]
        if now:
            self._producer.multi_publish(TOPIC, now)
        for number in later:
            self._producer.publish(TOPIC, click_of(number, self._rng), defer=_DEFER)
        self.count += count

    def _work(self) -> None:
        first, began = self.count, time.monotonic()
        try:
            while self.count < self._plan.messages and not self._stopped.wait(_PUBLISH_INTERVAL):
                share = min(1.0, (time.monotonic() - began) / self._plan.seconds)
                due = first + int((self._plan.messages - first) * share) - self.count
                self.publish(min(due, 20_000))
        except NSQError as exc:
            self.error = exc

    def start(self) -> None:
        """Publish the rest in the thread."""
        self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether :meth:`start` was called."""
        return self._thread.ident is not None

    @property
    def is_done(self) -> bool:
        """Whether everything is published, or publishing has failed."""
        return self.is_started and not self._thread.is_alive()

    def close(self) -> None:
        """End it; twice is fine."""
        self._stopped.set()
        if self.is_started:
            self._thread.join()
        self._producer.close(timeout=5)


def run_demo(plan: PipelinePlan, view: View[Snapshot], stopped: Callable[[], bool]) -> TableVerdict:
    """Start everything, publish, run the pipeline, end everything, and check the table. May switch.

    :param stopped: whether to end early
    :raises PipelineFailed: the pipeline ended by itself
    :raises NSQError: a daemon did not start, or Java was not found
    """
    location = _directory(plan.location)
    with ClusterProcesses(plan.nsqds) as cluster:
        return _run(plan, view, stopped, location, cluster)


def _directory(location: str) -> Path:
    if not location:
        return Path(tempfile.mkdtemp(prefix="gnsq_like-pipeline-"))
    path = Path(location).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise InvalidOption("--location", location, "it is not empty")
    except OSError as exc:
        raise InvalidOption("--location", location, f"it cannot be used: {exc.strerror}") from exc
    return path


def _run(
    plan: PipelinePlan, view: View[Snapshot], stopped: Callable[[], bool], location: Path, cluster: ClusterProcesses
) -> TableVerdict:
    [lookupd] = [each.http_address for each in cluster.lookupds]
    cluster.create_channels(TOPIC, CHANNEL)
    view.say(f"1 nsqlookupd and {plan.nsqds} nsqds are up; {plan.messages:,} clicks go to the topic {TOPIC}.")
    publisher = Publisher(plan, [nsqd.tcp_address for nsqd in cluster.nsqds])
    try:
        publisher.publish(max(1, int(plan.messages * _EARLY_SHARE)))
        _requeue_some(lookupd, min(_REQUEUED, publisher.count // 2))
        pipeline = _pipeline(location, lookupd, cluster.nsqds[0].tcp_address)
        view.say("Starting Spark, which takes some seconds.")
        end = _End(publisher, cluster, stopped)
        last = run_pipeline(pipeline, watch=lambda snapshot: _watch(end, view, snapshot), stop=end.is_reached)
        published = publisher.count
    finally:
        publisher.close()
    if stopped():
        return TableVerdict([], 1)
    if publisher.error is not None:
        raise PipelineFailed(f"publishing failed: {publisher.error}")
    if end.problem:
        raise PipelineFailed(end.problem)
    return judge(published, numbers_in(pipeline), last, [f"Table:  {location / 'data'}"])


def _pipeline(location: Path, lookupd: str, dead_letter_nsqd: str) -> Pipeline:
    return Pipeline(
        name="clicks",
        location=str(location),
        source={"topic": TOPIC, "channel": CHANNEL, "lookupd_http_addresses": lookupd, "msg_timeout": "10s"},
        schema=SCHEMA,
        dead_letters={"topic": DEAD, "nsqd_tcp_addresses": dead_letter_nsqd},
        trigger=_TRIGGER,
        spark={
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        },
    )


def _requeue_some(lookupd: str, count: int) -> None:
    """Take some clicks as another consumer, and requeue them."""
    if not count:
        return
    left = count
    with Reader(TOPIC, CHANNEL, lookupd_http_addresses=lookupd, max_in_flight=50) as messages:
        for message in messages:
            message.requeue(delay=1.0, backoff=False)
            left -= 1
            if not left:
                break


def _watch(end: _End, view: View[Snapshot], snapshot: Snapshot) -> None:
    end.messages = snapshot.messages
    if snapshot.batches and not end.publisher.is_started:
        # Spark is warm now, and keeps up.
        end.publisher.start()
    view.update(snapshot)


class _End:
    """When the run ends: all clicks are written, or a signal came, or there is no progress."""

    def __init__(self, publisher: Publisher, cluster: ClusterProcesses, stopped: Callable[[], bool]) -> None:
        self.publisher = publisher
        self._cluster = cluster
        self._stopped = stopped
        #: Messages that the pipeline has, and the monotonic time at which that last changed.
        self.messages = 0
        self._seen = -1
        self._moved_at = time.monotonic()
        #: Why it ends too early; "" if it does not.
        self.problem = ""

    def is_reached(self) -> bool:
        if self._stopped():
            return True
        if self.messages != self._seen:
            self._seen, self._moved_at = self.messages, time.monotonic()
        if self.publisher.is_done and self.messages >= self.publisher.count:
            return True
        if time.monotonic() - self._moved_at > _PATIENCE:
            self.problem = f"nothing was written for {_PATIENCE:.0f} s, after {self.messages:,} clicks"
        elif len(self._cluster.running_nsqds) < len(self._cluster.nsqds):
            self.problem = "an nsqd of the demo ended"
        return bool(self.problem)


def numbers_in(pipeline: Pipeline) -> Iterator[tuple[str, int]]:
    """The table of each number: ("data", number) or ("rejected", number)."""
    for row in _rows(pipeline.place("data"), "body"):
        yield "data", row["body"]["number"]
    for row in _rows(pipeline.place("rejected"), "body"):
        # The number comes first in all of them, JSON or not.
        yield "rejected", int(row["body"].partition(b":")[2].partition(b",")[0])


def _rows(place: str, column: str) -> Iterator[dict[str, Any]]:
    from pyarrow import dataset

    path = place.removeprefix("file://")
    if Path(path).exists():
        for batch in dataset.dataset(path, format="parquet", partitioning=None).to_batches(columns=[column]):
            yield from batch.to_pylist()


def judge(published: int, found: Iterator[tuple[str, int]], last: Snapshot, places: list[str]) -> TableVerdict:
    """Count the clicks that were lost, that are there twice, and that are in the wrong table."""
    counts = Counter(found)
    wanted = {("data" if is_good(number) else "rejected", number) for number in range(published)}
    lost = len(wanted - counts.keys())
    strange = len(counts.keys() - wanted)
    twice = sum(count > 1 for count in counts.values())
    rejected = sum(count for (where, _), count in counts.items() if where == "rejected")
    lines = [
        f"{published:,} clicks published; {counts.total() - rejected:,} in the table, {rejected:,} rejected, in "
        f"{last.batches:,} batches and {last.seconds:.0f} s.",
        f"{lost:,} lost, {twice:,} there twice{f', {strange:,} in the wrong place' if strange else ''}.",
        *places,
    ]
    return TableVerdict(lines, 1 if lost or twice or strange else 0)
