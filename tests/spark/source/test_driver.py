"""The driver's methods in the orders in which Spark calls them: restarts, skipped and repeated calls, other nsqds."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import gevent
import pytest

pytest.importorskip("pyarrow")

from gnsq_like import Connection
from gnsq_like.cluster.rounds import Unreachable
from gnsq_like.spark.source.driver import Driver
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.source.nsqds import Nsqds
from gnsq_like.spark.staging.records import End
from gnsq_like.spark.staging.staging_log import StagingLog, base_of
from gnsq_like.spark.staging.store import DataLost, PosixStore, StagingError
from tests.support.daemons import Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.scripted_http import Asked, always, response, scripted
from tests.support.spark_engine import PATIENT, Engine, once, publish, read_options, run_killed, source_options

KINDS = ["process", pytest.param("real", marks=pytest.mark.real_nsqd)]


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


def engine_of(nsqd: Running, directory: Path, topic: str, **options: Any) -> Engine:
    return Engine(directory, source_options([nsqd], directory, topic, **options))


def planned(end: Mapping[str, Any]) -> dict[str, int]:
    """The messages of a batch, by topic/channel; without the logs that it has nothing of."""
    logs: dict[str, Any] = end["logs"]
    return {of: sum(share["messages"] for share in log["plan"].values()) for of, log in logs.items() if log["plan"]}


def log_of(end: Mapping[str, Any], directory: Path) -> StagingLog:
    """The log of a query of one topic."""
    [(of, log)] = end["logs"].items()
    return StagingLog(PosixStore(directory / "stage"), base_of(*of.split("/")), log["log"])


# -- the beginning ----------------------------------------------------------------------------------------


def test_each_new_query_begins_a_log_of_its_own(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "initial", range(5))
    drivers = [engine_of(nsqd, tmp_path, "initial").driver for _ in range(2)]
    first = drivers[0].initial()
    assert [drivers[0].initial(), drivers[1].initial()] == [first, first]
    logs = [driver.latest(first)["logs"]["initial/spark"]["log"] for driver in drivers]
    assert logs[0] != logs[1]


def test_nothing_to_read_gives_the_start_back(nsqd: Running, tmp_path: Path) -> None:
    driver = engine_of(nsqd, tmp_path, "empty").driver
    start = json.loads(json.dumps(driver.initial()))
    assert driver.latest(start) is start
    assert driver.parts(start, start) == []


def test_topic_and_channel_are_there_after_the_first_look(nsqd: Running, tmp_path: Path) -> None:
    driver = engine_of(nsqd, tmp_path, "made").driver
    driver.latest(driver.initial())
    stats = NsqdHTTPClient(nsqd.http_address).stats("made")
    assert [channel["channel_name"] for channel in stats["topics"][0]["channels"]] == ["spark"]
    Nsqds(engine_of(nsqd, tmp_path, "unmade").options, creates=False).prepare()
    assert NsqdHTTPClient(nsqd.http_address).stats("unmade")["topics"] == []


def test_the_lag_is_what_the_last_poll_found_and_the_batch_does_not_take(nsqd: Running, tmp_path: Path) -> None:
    driver = engine_of(nsqd, tmp_path, "lag", max_messages=5).driver
    assert driver.lag() is None
    publish(nsqd, "lag", range(7))
    first = driver.latest(driver.initial())
    assert driver.lag() == {"lag": {nsqd.tcp_address: {"messages": 2, "in_flight": 0}}}
    # None of them was read: the next batch takes five again, or the rest of what the other one left.
    driver.latest(first)
    assert driver.lag() == {"lag": {nsqd.tcp_address: {"messages": 2, "in_flight": 0}}}
    publish(nsqd, "lag", range(3))
    waiting = engine_of(nsqd, tmp_path / "waiting", "lag", min_messages=100).driver
    start = waiting.initial()
    assert waiting.latest(start) == start
    assert waiting.lag() == {"lag": {nsqd.tcp_address: {"messages": 10, "in_flight": 0}}}


def test_a_new_query_that_reaches_no_daemon_fails(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        engine = engine_of(nsqd, tmp_path, "away", **PATIENT)
        publish(nsqd, "away", range(5))
        assert engine.run() == 1
        nsqd.kill()
        new = engine_of(nsqd, tmp_path / "new", "away")
        with pytest.raises(Unreachable):
            new.driver.latest(new.driver.initial())
        # A query that has run waits for them.
        again = engine_of(nsqd, tmp_path, "away")
        known = json.loads((tmp_path / "offsets" / "0").read_text())
        assert again.driver.latest(known) == known


def test_what_the_store_is_not_good_for_is_refused(nsqd: Running, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for location in (str(tmp_path / "file" / "stage"), "relative/path", "nosuch://bucket"):
        engine = engine_of(nsqd, tmp_path, "refused", staging_location=location)
        with pytest.raises(StagingError, match="staging_location"):
            engine.driver.latest(engine.driver.initial())


# -- batches ----------------------------------------------------------------------------------------------


def test_batches_are_bounded(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "bounded", range(1000))
    engine = engine_of(nsqd, tmp_path, "bounded", max_messages=300, **PATIENT)
    assert engine.run() == 4
    assert [len(engine.batch_rows(batch)) for batch in range(4)] == [300, 300, 300, 100]
    assert engine.bodies() == once(1000)


def test_all_available_means_all(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "unbounded", range(500))
    driver = engine_of(nsqd, tmp_path, "unbounded", max_messages=10).driver
    end = driver.latest(driver.initial(), limited=False)
    assert planned(end) == {"unbounded/spark": 500}


def test_a_batch_waits_for_its_least_messages_or_its_time(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "patient", range(50))
    driver = engine_of(nsqd, tmp_path, "patient", min_messages=100, max_trigger_delay=3600.0).driver
    assert driver.latest(driver.initial()) == driver.initial()
    publish(nsqd, "patient", range(50, 100))
    assert driver.latest(driver.initial()) != driver.initial()
    began = time.monotonic()
    publish(nsqd, "hasty", range(50))
    other = engine_of(nsqd, tmp_path, "hasty", min_messages=100, max_trigger_delay=0.5).driver
    wait_for(lambda: other.latest(other.initial()) != other.initial(), "max_trigger_delay")
    assert time.monotonic() - began >= 0.5


def test_what_is_paused_is_not_planned(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "paused", range(10))
    http = NsqdHTTPClient(nsqd.http_address)
    driver = engine_of(nsqd, tmp_path, "paused").driver
    http.pause_channel("paused", "spark")
    assert driver.latest(driver.initial()) == driver.initial()
    http.unpause_channel("paused", "spark")
    assert driver.latest(driver.initial()) != driver.initial()


def test_a_skipped_commit_is_made_up_for(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "skipped", range(600))
    engine = engine_of(nsqd, tmp_path, "skipped", max_messages=100, **PATIENT)
    engine.run(4, commit=False)
    again = engine_of(nsqd, tmp_path, "skipped", max_messages=100, **PATIENT)
    again.run()
    assert again.bodies() == once(600)
    staged = {path.parts[-1] for path in (tmp_path / "stage").glob("*/*/log-*/batch-*")}
    assert staged == {"batch-000000000006"}


def test_two_runs_of_one_query_share_a_plan(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "rivals", range(100))
    rivals = [engine_of(nsqd, tmp_path, "rivals").driver for _ in range(2)]
    end = rivals[0].latest(rivals[0].initial())
    publish(nsqd, "rivals", range(100, 200))
    # Spark writes down the offset of one of them alone, with its time.
    one, other = ({**rival.latest(end), "at": 0} for rival in rivals)
    assert planned(one) == {"rivals/spark": 200}
    assert one == other


def test_the_time_of_a_batch_is_in_its_offset_and_in_its_parts(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "times", range(100))
    times = iter(range(1_700_000_000, 1_800_000_000))
    options = read_options(source_options([nsqd], tmp_path, "times", max_messages=50))
    driver = Driver(options, clock=lambda: next(times))
    start = driver.initial()
    end = driver.latest(start)
    following = driver.latest(end)
    parts = [part for pair in ((start, end), (end, following), (start, end)) for part in driver.parts(*pair)]
    assert [part.seen_us for part in parts] == [1_700_000_000_000_000, 1_700_000_001_000_000, 1_700_000_000_000_000]
    # A batch whose offset was written anew has the present time.
    old = {key: each for key, each in end.items() if key != "at"}
    [part] = driver.parts(start, old)
    assert part.seen_us > parts[-1].seen_us


def test_commit_raises_nothing(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "broken", range(100))
    engine = engine_of(nsqd, tmp_path, "broken")
    engine.run()
    shutil.rmtree(tmp_path / "stage")
    (tmp_path / "stage").write_text("no directory")
    engine.driver.commit(json.loads((tmp_path / "offsets" / "0").read_text()))
    engine.driver.commit({"v": 2, "logs": {"silent/spark": {"log": "never seen", "batch": 3, "plan": {}}}})


# -- restarts ---------------------------------------------------------------------------------------------


def test_available_now_after_a_crash_gets_what_was_in_flight(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "crash", range(400))
    options = source_options([nsqd], tmp_path, "crash", msg_timeout=1)
    assert run_killed(tmp_path, options, "before-publish:2") == -9
    publish(nsqd, "crash", range(400, 500))
    engine = Engine(tmp_path, options)
    engine.run()
    assert engine.bodies() == once(500)


def test_an_available_now_run_goes_on_after_a_task_that_got_nothing(
    nsqd: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, "fruitless", range(100))
    driver = engine_of(nsqd, tmp_path, "fruitless").driver
    driver.prepare_available_now()
    end = driver.initial()
    batches = 0
    while (following := driver.latest(end)) != end:
        log = log_of(following, tmp_path)
        for part in driver.parts(end, following):
            assert log.seal(part, End(0, 0, "stalled"), 0)
        end, batches = dict(following), batches + 1
    # Not forever: other consumers may be taking everything.
    assert batches == 3
    [message] = caplog.messages
    assert message.startswith(f"topic fruitless at {nsqd.tcp_address}: ")
    assert message.endswith("about 100 messages are left for another run")


@pytest.mark.parametrize("wait", ["false", "true"])
def test_an_available_now_run_waits_for_what_its_own_tasks_requeued(
    nsqd: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture, wait: str
) -> None:
    """nsqd may execute a task's last commands after the driver's next question; with the option, also time-outs."""
    topic = f"requeued-{wait}"
    publish(nsqd, topic, range(10))
    driver = engine_of(nsqd, tmp_path, topic, wait_in_flight=wait).driver
    driver.prepare_available_now()
    held: list[Any] = []
    task = Connection(nsqd.tcp_address, on_messages=lambda connection, messages: held.extend(messages))
    task.connect()
    try:
        task.subscribe(topic, "spark")
        task.set_rdy(10)
        wait_for(lambda: len(held) == 10, "all messages")
        planning = gevent.spawn(driver.latest, driver.initial())
        wait_for(lambda: driver.lag() == {topic: {nsqd.tcp_address: {"messages": 0, "in_flight": 10}}}, "a question")
        task.set_rdy(0)
        for message in held:
            task.requeue(message[2])
        assert planned(planning.get(timeout=30)) == {f"{topic}/spark": 10}
    finally:
        task.close()
    assert caplog.messages == []


def test_an_available_now_run_ends_while_others_keep_its_messages_in_flight(
    nsqd: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, "kept", range(10))
    driver = engine_of(nsqd, tmp_path, "kept", wait_in_flight="false").driver
    driver.prepare_available_now()
    held: list[Any] = []
    other = Connection(nsqd.tcp_address, on_messages=lambda connection, messages: held.extend(messages))
    other.connect()
    try:
        other.subscribe("kept", "spark")
        other.set_rdy(4)
        wait_for(lambda: len(held) == 4, "four messages")
        other.set_rdy(0)
        end = driver.latest(driver.initial())
        assert planned(end) == {"kept/spark": 6}
        log = log_of(end, tmp_path)
        other.set_rdy(10)
        wait_for(lambda: len(held) == 10, "the rest")
        for part in driver.parts(driver.initial(), end):
            assert log.seal(part, End(0, 0, "slow"), 0)
        assert driver.latest(end) == end
    finally:
        other.close()
    at = f"topic kept at {nsqd.tcp_address}: "
    assert caplog.messages == [f"{at}in flight: 10; about 10 messages are left for another run"]


def test_an_available_now_run_asks_an_nsqd_that_does_not_answer_again(tmp_path: Path) -> None:
    channel = {"channel_name": "spark", "depth": 5}
    stats = response(json.dumps({"topics": [{"topic_name": "busy", "channels": [channel]}]}))
    asked_for_stats = count()

    def answer(asked: Asked) -> bytes:
        """Two of three questions for the numbers are in vain."""
        if "/stats" in asked.line and next(asked_for_stats) % 3 < 2:
            return response("busy", "503 Service Unavailable")
        return stats

    with scripted(always(answer)) as nsqd:
        given = {"nsqd_tcp_addresses": "127.0.0.1:1", "nsqd_http_addresses": nsqd.address}
        driver = Engine(tmp_path, {**source_options([], tmp_path, "busy"), **given}).driver
        driver.prepare_available_now()
        end = driver.latest(driver.initial())
        assert planned(end) == {"busy/spark": 5}
        # It took nothing. Now nsqd does not answer at all, and the run ends.
        nsqd.stop()
        assert driver.latest(end) == end


def test_another_query_is_refused_what_was_not_finished_unless_told_otherwise(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "left", range(300))
    stage = tmp_path / "stage"
    first = engine_of(nsqd, tmp_path / "first", "left", staging_location=stage, max_messages=200, **PATIENT)
    first.run()
    publish(nsqd, "left", range(300, 400))

    def second(policy: str) -> Engine:
        options = {"staging_location": stage, "unfinished_log": policy}
        return engine_of(nsqd, tmp_path / policy, "left", **options)

    with pytest.raises(StagingError, match="unfinished_log=adopt"):
        second("refuse").run()
    adopting = second("adopt")
    adopting.run()
    # Spark had not confirmed the last batch of the first query: it comes again, as the first one.
    assert adopting.batch_rows(0) == first.batch_rows(1)
    assert adopting.bodies() == once(200, 200)


def test_a_checkpoint_without_its_stage_is_data_loss(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "gone", range(200))
    options = source_options([nsqd], tmp_path, "gone", **PATIENT)
    Engine(tmp_path, {**options, "max_messages": 100}).run(1)
    run_killed(tmp_path, options, "after-END")
    shutil.rmtree(tmp_path / "stage")
    with pytest.raises(DataLost, match="fail_on_data_loss=false"):
        Engine(tmp_path, options).run()
    going_on = Engine(tmp_path, {**options, "fail_on_data_loss": "false"})
    publish(nsqd, "gone", range(1000, 1100))
    going_on.run()
    assert going_on.bodies() == once(100) + once(100, 1000)


def test_an_offset_of_another_source_is_said_to_be_one(nsqd: Running, tmp_path: Path) -> None:
    driver = engine_of(nsqd, tmp_path, "foreign").driver
    for foreign in ({"offset": 3}, {"v": 2, "log": "x", "batch": 1, "plan": {}}):
        with pytest.raises(StagingError, match="checkpoint"):
            driver.latest(foreign)


def test_a_batch_that_was_planned_too_large_ends_sooner(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "large", range(2000))
    options = source_options([nsqd], tmp_path, "large", wait_in_flight="false", **PATIENT)
    assert run_killed(tmp_path, options, "after-FIN:3") == -9
    assert planned(json.loads((tmp_path / "offsets" / "0").read_text())) == {"large/spark": 2000}
    resumed = Engine(tmp_path, {**options, "max_messages": "700"})
    resumed.run(1)
    assert len(resumed.batch_rows(0)) <= 700
    assert resumed.bodies() <= once(2000)


# -- several topics ---------------------------------------------------------------------------------------


def several(nsqd: Running, directory: Path, **options: Any) -> Engine:
    given = source_options([nsqd], directory, "unused", **options)
    del given["topic"]
    return Engine(directory, given)


def test_several_topics_share_the_batches(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "share.a", range(300))
    publish(nsqd, "share.b", range(1000, 1100))
    engine = several(nsqd, tmp_path, topics="share.a,share.b", max_messages=200, **PATIENT)
    start = engine.driver.initial()
    assert (start, engine.driver.initial()) == ({"v": 2, "logs": {}, "at": 0}, start)
    end = engine.driver.latest(start)
    assert planned(end) == {"share.a/spark": 150, "share.b/spark": 50}
    parts = engine.driver.parts(start, end)
    assert {(part.of.topic, part.of.channel) for part in parts} == {("share.a", "spark"), ("share.b", "spark")}
    topics: Counter[str] = Counter()
    for part in parts:
        for rows in read_part(part, replace(engine.options, columns=("topic", "channel", "body"))):
            topics.update(rows.column("topic").to_pylist())
            assert set(rows.column("channel").to_pylist()) == {"spark"}
    assert topics == {"share.a": 150, "share.b": 50}


def test_all_of_several_topics_once_over_restarts(nsqd: Running, tmp_path: Path) -> None:
    for number, topic in enumerate(("over.a", "over.b", "over.c")):
        publish(nsqd, topic, range(number * 1000, number * 1000 + 300))
    given = source_options([nsqd], tmp_path, "unused", topics="over.a,over.b,over.c", max_messages=400)
    del given["topic"]
    for point in ("partitions", "after-publish:2", "after-FIN:3", "commit-middle", "commit-end"):
        run_killed(tmp_path, given, point)
    engine = Engine(tmp_path, given)
    engine.run()
    assert engine.bodies() == once(300) + once(300, 1000) + once(300, 2000)


def test_topics_with_channels_of_their_own(nsqd: Running, tmp_path: Path) -> None:
    driver = several(nsqd, tmp_path, topics="own.a/first,own.b").driver
    driver.latest(driver.initial())
    client = NsqdHTTPClient(nsqd.http_address)
    for topic, channel in (("own.a", "first"), ("own.b", "spark")):
        [found] = client.stats(topic)["topics"]
        assert [each["channel_name"] for each in found["channels"]] == [channel]


def test_an_idle_topic_keeps_its_place(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "idle.a", range(100))
    engine = several(nsqd, tmp_path, topics="idle.a,idle.b", **PATIENT)
    engine.run()
    publish(nsqd, "idle.b", range(1000, 1100))
    engine.run()
    publish(nsqd, "idle.a", range(100, 200))
    again = several(nsqd, tmp_path, topics="idle.a,idle.b", **PATIENT)
    again.run()
    assert again.bodies() == once(200) + once(100, 1000)
    last = json.loads((tmp_path / "offsets" / "2").read_text())["logs"]
    assert {of: (log["batch"], bool(log["plan"])) for of, log in last.items()} == {
        "idle.a/spark": (2, True),
        "idle.b/spark": (1, False),
    }


def test_a_pattern_finds_topics_while_the_query_runs(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "found.a", range(100))
    publish(nsqd, "other.a", range(100))
    engine = several(nsqd, tmp_path, topics_pattern=r"found\..*", **PATIENT)
    engine.run(1, available_now=False)
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic("found.b")
    client.multi_publish("found.b", [b"%d" % number for number in range(1000, 1100)])
    last = json.loads((tmp_path / "offsets" / "0").read_text())

    def of_the_next() -> set[str]:
        end = engine.driver.latest(last)
        return set() if end == last else set(planned(end))

    assert wait_for(of_the_next, "the new topic") == {"found.b/spark"}
    engine.run()
    assert engine.bodies() == once(100) + once(100, 1000)


def test_a_checkpoint_of_one_topic_goes_on_with_several(nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "grown.a", range(300))
    options = source_options([nsqd], tmp_path, "grown.a", max_messages=100)
    Engine(tmp_path, options).run(1)
    # A batch that is written down, and staged in part, when the process ends.
    assert run_killed(tmp_path, options, "after-FIN:1") == -9
    publish(nsqd, "grown.b", range(1000, 1050))
    grown = several(nsqd, tmp_path, topics="grown.a,grown.b")
    grown.run()
    assert grown.bodies() == once(300) + once(50, 1000)
    # And with one alone again, which leaves the other where it is.
    publish(nsqd, "grown.a", range(300, 400))
    Engine(tmp_path, options).run()
    publish(nsqd, "grown.b", range(1050, 1100))
    pattern = several(nsqd, tmp_path, topics_pattern="grown.*")
    pattern.run()
    assert pattern.bodies() == once(400) + once(100, 1000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_finds_topics_by_lookup(kind: Any, tmp_path: Path) -> None:
    with running_nsqlookupd(kind) as lookupd:
        options = {"broadcast_address": "127.0.0.1", "lookupd_tcp_addresses": [lookupd.tcp_address]}
        with running_nsqd(kind, **options) as one, running_nsqd(kind, **options) as two:
            publish(one, "looked.a", range(100))
            publish(two, "looked.b", range(100, 200))
            publish(two, "unlooked", range(100))
            lookup = LookupdClient(lookupd.http_address)
            wait_for(
                lambda: (
                    sorted(topic for node in lookup.nodes() for topic in node.topics)
                    == ["looked.a", "looked.b", "unlooked"]
                ),
                "all topics are known",
            )
            given = source_options(
                [], tmp_path, "", topics_pattern="looked.*", lookupd_http_addresses=lookupd.http_address
            )
            for name in ("topic", "nsqd_tcp_addresses", "nsqd_http_addresses"):
                del given[name]
            engine = Engine(tmp_path, given)
            engine.run()
            assert engine.bodies() == once(200)
            assert set(lookup.channels("looked.b")) == {"spark"}
            assert NsqdHTTPClient(two.http_address).stats("looked.a")["topics"] == []


# -- nsqds that come and go -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["process", pytest.param("real", marks=[pytest.mark.real_nsqd, pytest.mark.spark_long])]
)
def test_several_nsqds_and_a_changed_topology(kind: Any, tmp_path: Path) -> None:
    with running_nsqd(kind) as one, running_nsqd(kind) as two, running_nsqd(kind) as three:
        for number, each in enumerate((one, two, three)):
            publish(each, "many", range(number * 100, number * 100 + 100))
        options = source_options([one, two], tmp_path, "many")
        first = Engine(tmp_path, {**options, **PATIENT, "max_messages": 150})
        first.run(1)
        assert Counter(row[3] for row in first.rows()) == {one.tcp_address: 75, two.tcp_address: 75}
        # Of these nsqds, one is gone and one is new.
        run_killed(tmp_path, options, "after-publish")
        second = Engine(tmp_path, source_options([two, three], tmp_path, "many"))
        second.run()
        third = Engine(tmp_path, source_options([one, two, three], tmp_path, "many"))
        third.run()
        assert third.bodies() == once(300)


@pytest.mark.parametrize("kind", KINDS)
def test_nsqds_are_found_by_lookup(kind: Any, tmp_path: Path) -> None:
    with running_nsqlookupd(kind) as lookupd:
        options = {"broadcast_address": "127.0.0.1", "lookupd_tcp_addresses": [lookupd.tcp_address]}
        with running_nsqd(kind, **options) as one, running_nsqd(kind, **options) as two:
            for number, each in enumerate((one, two)):
                publish(each, "found", range(number * 100, number * 100 + 100))
            given = source_options([], tmp_path, "found", lookupd_http_addresses=lookupd.http_address)
            del given["nsqd_tcp_addresses"], given["nsqd_http_addresses"]
            lookup = LookupdClient(lookupd.http_address)
            wait_for(lambda: len(lookup.lookup("found", missing_ok=True).producers) == 2, "both nsqds are known")
            engine = Engine(tmp_path, given)
            engine.run()
            assert engine.bodies() == once(200)
            assert {row[3] for row in engine.rows()} == {one.tcp_address, two.tcp_address}


def test_a_restarted_nsqd_gives_what_it_kept(tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        publish(nsqd, "restart", range(100))
        options = source_options([nsqd], tmp_path, "restart", wait_in_flight="false", **PATIENT)
        engine = Engine(tmp_path, options)
        engine.run(available_now=False, batches=1)
        nsqd.kill()
        before = json.loads((tmp_path / "offsets" / "0").read_text())
        assert engine.driver.latest(before) == before
        nsqd.start()
        publish(nsqd, "restart", range(100, 200))
        engine.run()
        assert engine.bodies() == once(200)
