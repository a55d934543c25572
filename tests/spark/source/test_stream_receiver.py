"""The work of one task: late attempts, stalls, lost connections. Nothing is lost, and nothing doubled if possible.

Two attempts of a task are two greenlets; a test holds one of them at a point of ``spark_points``.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

pytest.importorskip("pyarrow")

from gnsq_like.errors import ConnectionFailed
from gnsq_like.spark.pipeline.faults import sentence
from gnsq_like.spark.source.batch import peek
from gnsq_like.spark.source.executor import StreamReceiver, read_part
from gnsq_like.spark.staging.offsets import Part, TopicChannel
from gnsq_like.spark.staging.staging_log import StagingLog, base_of, staged_parts
from gnsq_like.spark.staging.store import Fenced, PosixStore, Store, open_store
from tests.support import certificates
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.files import files_no_larger_than
from tests.support.spark_engine import PATIENT, Engine, once, publish, source_options
from tests.support.spark_points import Reached, WatchedStore, watched_connection

#: Seconds that an event may take on a busy machine.
PATIENCE = 60.0

KINDS = ["process", pytest.param("real", marks=pytest.mark.real_nsqd)]


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


class Query:
    """A query on one nsqd, whose tasks the tests run."""

    def __init__(self, nsqd: Running, directory: Path, topic: str, count: int, **options: Any) -> None:
        if options.pop("store", "posix") == "memory":
            pytest.importorskip("fsspec")
            options["staging_location"] = f"memory://{uuid.uuid4().hex}"
        self.topic = topic
        self.engine = Engine(directory, source_options([nsqd], directory, topic, **options))
        self.driver = self.engine.driver
        self.http = publish(nsqd, topic, range(count))

    def plan(self, start: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[Part]]:
        """Plan the next batch, once the channel has messages; returns its offset and its parts."""
        before = self.driver.initial() if start is None else start

        def planned() -> dict[str, Any]:
            end = dict(self.driver.latest(before))
            return end if end != before else {}

        end = wait_for(planned, "a batch")
        return end, self.driver.parts(before, end)

    def receiver(self, part: Part, reached: Reached = lambda point: None, store: Store | None = None) -> StreamReceiver:
        options = self.engine.options
        store = WatchedStore(store or open_store(options.staging_location, options.storage), reached)
        log = StagingLog(store, base_of(self.topic, "spark"), part.log)
        return StreamReceiver(part, log, options, connection=watched_connection(reached))

    def finish(self) -> None:
        """Let the engine deliver the remaining messages, from the beginning of its own log."""
        wait_for(lambda: self.in_flight() == 0, "requeued messages are back")
        self.engine.run()

    def count(self, *names: str) -> int:
        """The sum of these counts of the channel."""
        channel: Any = self.http.stats(self.topic)["topics"][0]["channels"][0]
        return sum(int(channel[name]) for name in names)

    def in_flight(self) -> int:
        return self.count("in_flight_count", "deferred_count")

    def rows_of(self, *parts: Part) -> list[str]:
        """The bodies in the parts."""
        batches = [batch for part in parts for batch in read_part(part, self.engine.options)]
        return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]

    def rest(self, end: dict[str, Any]) -> list[str]:
        """The bodies of all batches after ``end``, each finished before the next is planned."""
        bodies: list[str] = []
        while self.count("depth", "in_flight_count", "deferred_count"):
            wait_for(lambda: self.count("depth"), "requeued messages are back")
            start, (end, parts) = end, self.plan(end)
            self.driver.commit(start)
            bodies += self.rows_of(*parts)
        return bodies


class Held:
    """Holds the first greenlet that reaches a point for the nth time, until it is let go."""

    def __init__(self, point: str, nth: int = 1) -> None:
        self._point = point
        self._left = nth
        self.reached = Event()
        self.go = Event()

    def __call__(self, point: str) -> None:
        if point == self._point and not self.reached.is_set():
            self._left -= 1
            if not self._left:
                self.reached.set()
                assert self.go.wait(PATIENCE)


@pytest.mark.parametrize("store", ["posix", "memory"])
def test_two_attempts_at_once_give_one_sequence(nsqd: Running, tmp_path: Path, store: str) -> None:
    query = Query(nsqd, tmp_path, f"two-{store}", 500, store=store)
    end, [part] = query.plan()
    held = Held("before-publish")
    late = gevent.spawn(query.receiver(part, held).run)
    assert held.reached.wait(PATIENCE)
    query.receiver(part).run()
    held.go.set()
    late.get(timeout=PATIENCE)
    first = query.rows_of(part)
    assert query.rows_of(part) == first
    assert sorted(first + query.rest(end), key=int) == [str(number) for number in range(500)]


@pytest.mark.parametrize("store", ["posix", "memory"])
def test_an_attempt_that_wakes_after_its_batch_is_finished_finishes_nothing(
    nsqd: Running, tmp_path: Path, store: str
) -> None:
    query = Query(nsqd, tmp_path, f"late-{store}", 500, store=store, msg_timeout="60s")
    end, [part] = query.plan()
    held = Held("before-publish")
    late = gevent.spawn(query.receiver(part, held).run)
    assert held.reached.wait(PATIENCE)
    query.receiver(part).run()
    first = query.rows_of(part)
    assert 0 < len(first) < 500
    query.driver.commit(end)
    held.go.set()
    with pytest.raises(Fenced, match="too late"):
        late.get(timeout=PATIENCE)
    assert sorted(first + query.rest(end), key=int) == [str(number) for number in range(500)]


def test_a_stall_before_publishing_gives_the_messages_back(nsqd: Running, tmp_path: Path) -> None:
    query = Query(nsqd, tmp_path, "stall", 300, min_partitions=2, msg_timeout=1)
    # They have attempts above 1 then, so they are looked up.
    peek(nsqd.tcp_address, TopicChannel("stall", "spark"), query.engine.options, 300)
    end, parts = query.plan()
    assert len(parts) == 2
    # It holds a segment. It does not see messages that others stage from here on.
    held = Held("look-up", 2)
    stalled = gevent.spawn(query.receiver(parts[0], held).run)
    assert held.reached.wait(PATIENCE)
    # Meanwhile nsqd delivers the stalled task's messages to others.
    wait_for(lambda: query.count("timeout_count") >= 100, "the messages' timeout")
    query.receiver(parts[1]).run()
    held.go.set()
    stalled.get(timeout=PATIENCE)
    assert sorted(query.rows_of(*parts) + query.rest(end), key=int) == [str(number) for number in range(300)]


def test_a_stall_between_publishing_and_fin_makes_no_copies(nsqd: Running, tmp_path: Path) -> None:
    query = Query(nsqd, tmp_path, "stall-fin", 300, min_partitions=2, msg_timeout=1)
    end, parts = query.plan()
    held = Held("after-publish")
    stalled = gevent.spawn(query.receiver(parts[0], held).run)
    assert held.reached.wait(PATIENCE)
    wait_for(lambda: query.count("timeout_count") >= 100, "the messages' timeout")
    held.go.set()
    stalled.get(timeout=PATIENCE)
    query.receiver(parts[1]).run()
    assert sorted(query.rows_of(*parts) + query.rest(end), key=int) == [str(number) for number in range(300)]


def test_a_copy_is_known_after_its_batch_is_gone(nsqd: Running, tmp_path: Path) -> None:
    query = Query(nsqd, tmp_path, "suspect", 100, **PATIENT)
    end, [part] = query.plan()

    def die(point: str) -> None:
        if point == "after-publish":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        query.receiver(part, die).run()
    assert query.rows_of(part) == [str(number) for number in range(100)]
    query.driver.commit(end)
    assert query.rest(end) == []
    store = open_store(query.engine.options.staging_location, {})
    assert [name for name in store.list("") if "/unsure-" in name]
    assert not [part for part in staged_parts(store.list("")) if part.batch == 1]


class Broken(PosixStore):
    """A file system that fails before or after it creates a name, or END, or when it lists a prefix."""

    def __init__(self, root: Path, failing: str) -> None:
        super().__init__(root)
        self._when, _, self._what = failing.partition(" ")

    def create(self, name: str, data: bytes | memoryview) -> bool:
        hit = self._what in name or (self._what == "END" and bytes(data[:4]) == b"END ")
        if hit and self._when == "before":
            raise OSError(errno.ENOSPC, "no space left", name)
        created = super().create(name, data)
        if hit and self._when == "after":
            raise OSError(errno.EIO, "input/output error", name)
        return created

    def list(self, prefix: str) -> list[str]:
        if self._when == "list" and prefix.endswith(self._what):
            raise OSError(errno.EIO, "input/output error", prefix)
        return super().list(prefix)


@pytest.mark.parametrize(
    "failing",
    ["before /000000", "after /000000", "before /000001", "list /committed", "before END", "after END"],
)
def test_a_store_that_fails_loses_and_doubles_nothing(nsqd: Running, tmp_path: Path, failing: str) -> None:
    topic = "broken-" + failing.replace(" ", "-").replace("/", "")
    query = Query(nsqd, tmp_path, topic, 300, msg_timeout=30)
    end, [part] = query.plan()
    with pytest.raises(OSError, match=r"no space left|input/output error"):
        query.receiver(part, store=Broken(tmp_path / "stage", failing)).run()
    # No message waits for its timeout.
    wait_for(lambda: query.in_flight() == 0, "all messages are back")
    rows = query.rows_of(part)
    assert rows == query.rows_of(part)
    assert sorted(rows + query.rest(end), key=int) == [str(number) for number in range(300)]


@contextmanager
def forbidden(directory: Path) -> Iterator[None]:
    """Nobody may look into the directory, not even if the tests run as root."""
    is_root, mode = os.geteuid() == 0, directory.stat().st_mode
    directory.chmod(0)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(mode)


@pytest.mark.parametrize("what", ["full", "forbidden"])
def test_a_stage_that_takes_nothing_is_named_and_loses_nothing(nsqd: Running, tmp_path: Path, what: str) -> None:
    query = Query(nsqd, tmp_path, f"takes-nothing-{what}", 300, max_messages=200, msg_timeout=30)
    end, [part] = query.plan()
    rows = query.rows_of(part)  # with all that is imported for it
    start, (end, [part]) = end, query.plan(end)
    query.driver.commit(start)
    stage = tmp_path / "stage"
    with (
        pytest.raises(OSError, match=str(stage)) as raised,
        files_no_larger_than(500) if what == "full" else forbidden(stage),
    ):
        query.receiver(part).run()
    said = {"full": "a file is larger than the system allows", "forbidden": "permission denied"}[what]
    assert sentence(raised.value, "/elsewhere").startswith(f"{said} ")
    assert str(stage) in sentence(raised.value, "/elsewhere")
    wait_for(lambda: query.in_flight() == 0, "all messages are back")
    assert sorted(rows + query.rows_of(part) + query.rest(end), key=int) == [str(number) for number in range(300)]


def test_a_part_that_is_complete_needs_no_confirmation(nsqd: Running, tmp_path: Path) -> None:
    query = Query(nsqd, tmp_path, "unconfirmed", 300)
    end, [part] = query.plan()
    query.receiver(part, store=Broken(tmp_path / "stage", "before /confirmed-")).run()
    assert sorted(query.rows_of(part) + query.rest(end), key=int) == [str(number) for number in range(300)]


def test_the_first_message_may_take_longer_than_a_pause(nsqd: Running, tmp_path: Path) -> None:
    query = Query(nsqd, tmp_path, "slow-start", 100, msg_timeout=60)
    end, [part] = query.plan()
    query.http.pause_channel(query.topic, "spark")
    receiving = gevent.spawn(query.receiver(part).run)
    wait_for(lambda: query.http.stats(query.topic)["topics"][0]["channels"][0]["client_count"], "it has subscribed")
    query.http.unpause_channel(query.topic, "spark")
    receiving.get(timeout=PATIENCE)
    rows = query.rows_of(part)
    assert rows
    assert sorted(rows + query.rest(end), key=int) == [str(number) for number in range(100)]


def test_what_a_dying_nsqd_has_given_is_staged(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        query = Query(nsqd, tmp_path, "dying", 150, **PATIENT)
        _, [part] = query.plan()

        def kill(point: str) -> None:
            if point == "after-FIN":
                nsqd.kill()

        query.receiver(part, kill).run()
        rows = query.rows_of(part)
        assert rows[:100] == [str(number) for number in range(100)]
        assert rows == [str(number) for number in range(len(rows))]


def test_an_nsqd_that_is_away_costs_a_batch_nothing_but_its_share(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        query = Query(nsqd, tmp_path, "away", 50)
        _, [part] = query.plan()
        nsqd.kill()
        query.receiver(part).run()
        assert query.rows_of(part) == []


def test_what_nsqd_refuses_fails_the_task(tmp_path: Path) -> None:
    # This nsqd does not accept such a long timeout.
    with running_nsqd("process", max_msg_timeout=5.0) as nsqd:
        query = Query(nsqd, tmp_path, "refused", 10, msg_timeout=60)
        _, [part] = query.plan()
        with pytest.raises(ConnectionFailed, match="timeout"):
            query.receiver(part).run()


def test_a_certificate_that_is_wrong_for_a_while_costs_a_batch_its_share(tmp_path: Path) -> None:
    cert, key = certificates.write_certificate(tmp_path)
    root = certificates.write_ca(tmp_path, certificates.stranger())
    with running_nsqd("process", tls_cert=cert, tls_key=key) as nsqd:
        tls = {"nsq.tls_v1": "true", "nsq.tls_root_ca_file": root}
        query = Query(nsqd, tmp_path, "wrong", 20, max_messages=10, **PATIENT, **tls)
        end, [part] = query.plan()
        # A new query has wrong options; it would wait for ever.
        with pytest.raises(ConnectionFailed, match="certificate"):
            query.receiver(part).run()
        certificates.write_ca(tmp_path)
        bodies = query.rows_of(part)
        assert len(bodies) == 10

        certificates.write_ca(tmp_path, certificates.stranger())
        start, (end, [part]) = end, query.plan(end)
        query.driver.commit(start)
        [part] = query.driver.parts(start, end)
        assert query.rows_of(part) == []
        certificates.write_ca(tmp_path)
        assert sorted(bodies + query.rest(end), key=int) == [str(number) for number in range(20)]


def test_bytes_bound_a_part(nsqd: Running, tmp_path: Path) -> None:
    query = Query(nsqd, tmp_path, "bytes", 400, max_bytes=250, **PATIENT)
    end, [part] = query.plan()
    assert part.messages < 200
    assert 1 <= len(query.rows_of(part)) <= part.messages
    bodies = query.rows_of(part) + query.rest(end)
    assert sorted(bodies, key=int) == [str(number) for number in range(400)]


def test_the_engine_takes_it_all(nsqd: Running, tmp_path: Path) -> None:
    query = Query(nsqd, tmp_path, "all", 1000, max_messages=300, min_partitions=2)
    query.finish()
    assert query.engine.bodies() == once(1000)
    assert query.count("depth") == 0
