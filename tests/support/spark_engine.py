"""Spark's streaming engine without Spark: it calls a source in the order in which Spark does, and keeps the same log.

A micro-batch query (docs/internals S1) writes the offsets of a batch down, reads the batch, writes its rows, and writes
down that it is done. It tells the source that a batch is finished once the next one is written down. After a restart it
continues from what is written. Rows are written whole or not at all, under the batch's number, as a file sink does.

::

    engine = Engine(directory, options)
    engine.run()                                    # an AvailableNow run, to its end
    engine.bodies()                                 # what the sink has

``run_killed`` runs one in a process that kills itself when it reaches a point of ``spark_points`` for the nth time,
"after-FIN:2".
"""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from gnsq_like.spark.format_options import SourceOptions, parse_options
from gnsq_like.spark.source.driver import Driver
from gnsq_like.spark.source.executor import read_part
from tests.support.daemons import wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_points import KillAt, Reached, WatchedDriver, watched_part

#: Processes that have everything imported when they start.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "requests"])
#: Tests run several at once, in threads. Starting a process also reads the statuses of the others, and of two threads
#: that read the same one, the second gets nothing and takes it for 255.
_statuses = threading.Lock()

#: Options for batches that take all that was planned: by default one ends when nsqd pauses for 150 ms, or is slow to
#: begin; how long depends on this time-out. In text, as a pipeline's source needs them.
PATIENT = {"msg_timeout": "10m"}


#: Fields of the source's options that users do not set. A test has fewer messages than they have, so smaller segments.
CONSTANTS = {"segment_messages": 100, "segment_bytes": 32 << 20, "max_trigger_delay": 900.0}


def read_options(given: Mapping[str, Any]) -> SourceOptions:
    """The source's options, from those of a user and of :data:`CONSTANTS`."""
    theirs = {name: str(value) for name, value in given.items() if name not in CONSTANTS}
    constants: dict[str, Any] = {name: given.get(name, value) for name, value in CONSTANTS.items()}
    return replace(parse_options(SourceOptions, theirs), **constants)


class Engine:
    """One query with its checkpoint and its sink, both in ``directory``.

    :param options: as text, and constants (``CONSTANTS``) as they are
    :param reached: called at each point (``spark_points``)
    """

    def __init__(self, directory: Path, options: Mapping[str, Any], reached: Reached | None = None) -> None:
        self.options = read_options(options)
        self.driver = Driver(self.options) if reached is None else WatchedDriver(self.options, reached)
        self._read_part = read_part if reached is None else partial(watched_part, reached=reached)
        self._directory = directory
        for name in ("offsets", "commits", "sink"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def _written(self, name: str) -> list[int]:
        return sorted(int(path.name) for path in (self._directory / name).iterdir() if path.name.isdigit())

    def _write(self, name: str, batch: int, value: object) -> None:
        partial = self._directory / name / f"partial-{batch}"
        partial.write_text(json.dumps(value))
        partial.rename(self._directory / name / str(batch))

    def _offset(self, batch: int) -> Any:
        return json.loads((self._directory / "offsets" / str(batch)).read_text())

    def run(self, batches: int | None = None, *, available_now: bool = True, commit: bool = True) -> int:
        """Run until there is nothing more, or for so many batches; how many there were.

        :param commit: whether the source hears that batches are finished
        """
        driver = self.driver
        if available_now:
            driver.prepare_available_now()
        done = 0
        planned, committed = self._written("offsets"), self._written("commits")
        following = committed[-1] + 1 if committed else 0
        start = self._offset(following - 1) if following else None
        if planned and planned[-1] == following:
            # A batch that was written down and not finished comes first.
            self._execute(following, start if start is not None else driver.initial(), self._offset(following))
            start, following, done = self._offset(following), following + 1, 1
        while batches is None or done < batches:
            before = driver.initial() if start is None else start
            end = driver.latest(before)
            if start is None:
                assert driver.initial() == before
            elif end == start:
                break
            self._write("offsets", following, end)
            if following and commit:
                driver.commit(self._offset(following - 1))
            self._execute(following, before, json.loads(json.dumps(end)))
            start, following, done = json.loads(json.dumps(end)), following + 1, done + 1
        return done

    def _execute(self, batch: int, start: Mapping[str, Any], end: Mapping[str, Any]) -> None:
        rows: list[Any] = []
        for part in self.driver.parts(start, end):
            for records in self._read_part(part, self.options):
                columns = [records.column(name).to_pylist() for name in ("id", "body", "attempts", "nsqd_address")]
                rows += [[each[0], each[1].decode(), each[2], each[3]] for each in zip(*columns, strict=True)]
        self._write("sink", batch, rows)
        self._write("commits", batch, None)

    def rows(self) -> list[Any]:
        """All rows that the sink has, in the order of the batches: [id, body, attempts, nsqd_address]."""
        return [row for batch in self._written("sink") for row in self.batch_rows(batch)]

    def batch_rows(self, batch: int) -> list[Any]:
        rows: list[Any] = json.loads((self._directory / "sink" / str(batch)).read_text())
        return rows

    def bodies(self) -> Counter[str]:
        """How often the sink has each body."""
        return Counter(row[1] for row in self.rows())


def run_killed(directory: Path, options: Mapping[str, Any], point: str) -> int:
    """An AvailableNow run in a process that kills itself at the point; its exit status."""
    process = _PROCESSES.Process(target=_run, args=(directory, dict(options), point))
    with _statuses:
        process.start()
    try:
        wait([process.sentinel])
    except BaseException:  # the limit of the test
        process.kill()
        wait([process.sentinel])
        raise
    with _statuses:
        status = process.exitcode
    assert status is not None
    process.close()
    return status


def _run(directory: Path, options: Mapping[str, Any], point: str) -> None:
    Engine(directory, options, KillAt(point)).run()


def source_options(nsqds: list[Any], directory: Path, topic: str, **more: Any) -> dict[str, Any]:
    """Options for these nsqds that suit tests: what a killed process had in flight is back soon."""
    return {
        "topic": topic,
        "channel": "spark",
        "nsqd_tcp_addresses": ",".join(nsqd.tcp_address for nsqd in nsqds),
        "nsqd_http_addresses": ",".join(nsqd.http_address for nsqd in nsqds),
        "staging_location": str(directory / "stage"),
        "msg_timeout": 3,
        "wait_in_flight": "true",
        **more,
    }


def publish(nsqd: Any, topic: str, bodies: Iterable[int | bytes]) -> NsqdHTTPClient:
    """Publish these bodies, or numbers; they are in the channel when it returns."""
    http = NsqdHTTPClient(nsqd.http_address)
    http.create_topic(topic)
    http.create_channel(topic, "spark")
    http.multi_publish(topic, [each if isinstance(each, bytes) else b"%d" % each for each in bodies])

    def arrived() -> bool:
        [found] = http.stats(topic)["topics"]
        return bool(found["channels"][0]["message_count"] == found["message_count"])

    wait_for(arrived, f"all of {topic} in its channel")
    return http


def once(count: int, start: int = 0) -> Counter[str]:
    """Each number once, as bodies: nothing lost, nothing doubled."""
    return Counter(str(number) for number in range(start, start + count))
