"""Metrics of real Readers and Producers, in one process and in the workers of gunicorn."""

import os
import re
import signal
import sys
import time
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gnsq_like import Batch, Message, Producer, Reader, Requeue
from gnsq_like.contrib.prometheus import Metrics
from gnsq_like.contrib.shared.outbox.relay import Relay
from gnsq_like.errors import InvalidOption, NotSent
from tests.support.daemons import running_nsqd, wait_for
from tests.support.outboxes import Memory
from tests.support.web import CONF, UP, Server, get, gunicorn, publish_from

#: Serves the counts of all workers, and drops the gauges of a worker that has ended.
METRICS_CONF = (
    CONF
    + """
from prometheus_client import multiprocess

def child_exit(server, worker):
    multiprocess.mark_process_dead(worker.pid)
"""
)


def values(text: str) -> dict[str, float]:
    """The samples of an exposition: "name{labels}" to value."""
    return {name: float(value) for name, value in re.findall(r"^(nsq_[^ ]+) (\S+)$", text, re.MULTILINE)}


def has_finished(reader: Reader, count: int) -> bool:
    return bool(reader.stats()["finished"] == count)


def has_handled(server: Server, count: int) -> bool:
    return len(server.noted("handled")) == count


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return Metrics(registry, buckets=(0.5, 1))


def scrape(registry):
    return values(generate_latest(registry).decode())


def test_what_a_reader_and_a_producer_count(registry, metrics):
    def handler(message):
        if message.body == b"bad" and message.attempts == 1:
            raise Requeue(delay=0)
        if message.body == b"worse":
            raise ValueError("as it should")

    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        reader = Reader(
            "t",
            "c",
            metrics.timed(handler),
            nsqd_tcp_addresses=nsqd.tcp_address,
            max_in_flight=3,
            default_requeue_delay=0,
            max_attempts=2,
            max_backoff_duration=0,
        )
        metrics.watch_reader(reader)
        metrics.watch_producer(producer, "web")
        with reader:
            for body in (b"good", b"bad", b"worse", b"good"):
                producer.publish("t", body)
            wait_for(lambda: reader.stats()["finished"] == 4, "all")
            found = scrape(registry)
            labels = '{channel="c",topic="t"}'
            expected = {"received": 6, "finished": 4, "requeued": 2, "failed": 3, "given_up": 1, "lost": 0}
            counted = {name: found[f"nsq_reader_{name}_messages_total{labels}"] for name in expected}
            assert counted == expected
            assert found[f"nsq_reader_handler_seconds_count{labels}"] == 6
            assert found['nsq_reader_handler_seconds_bucket{channel="c",le="0.5",topic="t"}'] == 6
            assert found[f"nsq_reader_connections{labels}"] == 1
            assert found[f"nsq_reader_max_in_flight_messages{labels}"] == 3
            assert found[f"nsq_reader_rdy_messages{labels}"] >= 1
            assert found[f"nsq_reader_paused{labels}"] == 0
            reader.pause()
            assert scrape(registry)[f"nsq_reader_paused{labels}"] == 1
            assert found[f"nsq_reader_in_flight_messages{labels}"] == found[f"nsq_reader_backoff_level{labels}"] == 0
            assert found['nsq_producer_messages_total{outcome="confirmed",producer="web"}'] == 4
            assert found['nsq_producer_connections{producer="web"}'] == 1
            assert found['nsq_producer_away{producer="web"}'] == 0
        assert scrape(registry)[f"nsq_reader_connections{labels}"] == 0


def test_what_cannot_be_called_is_not_timed(metrics):
    with pytest.raises(InvalidOption, match="handler=3: it must be callable"):
        metrics.timed(3)


def test_a_producer_whose_nsqd_is_away(registry, metrics):
    with Producer("127.0.0.1:1", fail_fast=True) as producer:
        metrics.watch_producer(producer)
        with pytest.raises(NotSent):
            producer.publish("t", b"x")
        assert scrape(registry)['nsq_producer_away{producer="default"}'] == 1
    assert scrape(registry)['nsq_producer_away{producer="default"}'] == 0


def test_the_relay_of_an_outbox(registry, metrics):
    store = Memory()
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address, max_msg_bytes=100) as producer:
        relay = Relay(store, producer, poll_interval=10, name="shop")
        metrics.watch_relay(relay)
        store.add("orders", "", b"x", b"y", b"z" * 101)
        assert relay.run_once() == 2
        found = scrape(registry)
    counted = {name: found[f'nsq_outbox_{name}{{outbox="shop"}}'] for name in OUTBOX}
    assert counted == dict(zip(OUTBOX, [2, 1, 1, 7], strict=True))


OUTBOX = ["published_messages_total", "refused_messages_total", "waiting_messages", "lag_seconds"]


def test_a_reader_started_again_goes_on_counting(registry, metrics):
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        reader = Reader("t", "c", lambda message: None, nsqd_tcp_addresses=nsqd.tcp_address)
        metrics.watch_reader(reader)
        for count in (1, 2, 3):
            with reader:
                producer.publish("t", b"x")
                wait_for(partial(has_finished, reader, count), "the message")
            assert scrape(registry)['nsq_reader_finished_messages_total{channel="c",topic="t"}'] == count


def test_a_producer_that_is_closed_has_counted_what_it_has(registry, metrics):
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        metrics.watch_producer(producer)
        producer.publish("t", b"x")
        before = scrape(registry)
        producer.close()
        after = scrape(registry)
    assert before['nsq_producer_messages_total{outcome="confirmed",producer="default"}'] == 1
    assert before['nsq_producer_connections{producer="default"}'] == 1
    assert after == before | {'nsq_producer_connections{producer="default"}': 0}


def test_an_nsqd_that_is_away_is_not_connected(registry, metrics):
    with Producer("127.0.0.1:1", timeout=0.1) as producer:
        metrics.watch_producer(producer)
        with pytest.raises(NotSent):
            producer.publish("t", b"x")
        found = scrape(registry)
    assert found['nsq_producer_connections{producer="default"}'] == 0
    assert found['nsq_producer_messages_total{outcome="not_sent",producer="default"}'] == 1


def test_reconnects_and_two_readers_of_one_channel(registry, metrics):
    with running_nsqd() as nsqd:
        readers = [Reader("t", "c", print, nsqd_tcp_addresses=nsqd.tcp_address, max_redial_delay=0.1) for _ in "ab"]
        for reader in readers:
            metrics.watch_reader(reader)
        with readers[0], readers[1]:
            wait_for(lambda: all(reader.stats()["connections"] for reader in readers), "connections")
            nsqd.stop()
            wait_for(lambda: not any(reader.stats()["connections"] for reader in readers), "the loss")
            nsqd.start()
            wait_for(lambda: all(reader.stats()["connections"] for reader in readers), "connections")
            found = scrape(registry)
    assert found['nsq_reader_reconnects_total{channel="c",topic="t"}'] == 2
    assert found['nsq_reader_connections{channel="c",topic="t"}'] == 2


def test_a_batch_is_timed_as_one(registry, metrics):
    batches: list[list[Message]] = []
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        handler = Batch(metrics.timed(batches.append), size=10, interval=0.1)
        with Reader("t", "c", handler, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=20):
            producer.multi_publish("t", [b"1", b"2", b"3"])
            wait_for(lambda: sum(len(batch) for batch in batches) == 3, "all")
    assert scrape(registry)['nsq_reader_handler_seconds_count{channel="c",topic="t"}'] == len(batches)


def test_what_timing_a_call_costs(metrics):
    """prometheus-client is called for many calls at once: that costs more than an empty handler."""
    reader = Reader("t", "c", lambda message: None, nsqd_tcp_addresses="127.0.0.1:4150")
    metrics.time_reader(reader)
    handler: Any = reader.handler
    made = []
    handler(None)
    sys.setprofile(lambda frame, event, _: made.append(event))
    try:
        handler(None)
    finally:
        sys.setprofile(None)
    # The timed handler, the clock twice, the handler, append, len, and setprofile.
    assert sum(event in ("call", "c_call") for event in made) <= 8


def test_the_metrics_of_a_registry_are_named_once(registry, metrics):
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)


@pytest.mark.servers
@pytest.mark.parametrize(("kind", "preload"), [("gevent", False), ("gthread", True)])
def test_two_workers_count_together(tmp_path, kind, preload):
    directory = tmp_path / "metrics"
    directory.mkdir()
    flags = ["-k", kind, "-w", "2", *(["--threads=10"] if kind == "gthread" else []), *(["--preload"] * preload)]
    with (
        running_nsqd() as nsqd,
        gunicorn(
            tmp_path,
            *flags,
            conf=METRICS_CONF,
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
            PROMETHEUS_MULTIPROC_DIR=str(directory),
        ) as server,
    ):
        # A worker that started late may not have handled anything yet.
        count = 0
        while not (len(server.pids("handled")) == len(server.pids("began")) == 2):
            names = [f"0-{number}" for number in range(count, count + 100)]
            answers = publish_from(20, server.port, names, topic="work")
            assert sorted(answers.ok) == sorted(names)
            count += 100
            wait_for(partial(has_handled, server, count), "all messages")
        labels = '{channel="workers",topic="work"}'

        def complete():
            found = values(get(server.port, "/metrics")[1])
            return found if found.get(f"nsq_reader_finished_messages_total{labels}") == count else None

        found = wait_for(complete, "both workers' counts")
        assert found[f"nsq_reader_handler_seconds_count{labels}"] == count
        assert found[f"nsq_reader_connections{labels}"] == 2
        assert found[f"nsq_reader_max_in_flight_messages{labels}"] == 100
        wait_for(
            lambda: (
                values(get(server.port, "/metrics")[1])[
                    'nsq_producer_messages_total{outcome="confirmed",producer="clicks"}'
                ]
                == count
            ),
            "both Producers' counts",
        )
        # When a worker dies, its counts stay and its connections are gone.
        os.kill(int(server.pids("handled").pop()), signal.SIGKILL)
        wait_for(lambda: server.log.count(UP) == 3, "another worker")

        def again():
            found = values(get(server.port, "/metrics")[1])
            return found if found[f"nsq_reader_connections{labels}"] == 2 else None

        found = wait_for(again, "the connections of two workers")
        assert found[f"nsq_reader_max_in_flight_messages{labels}"] == 100
        assert found[f"nsq_reader_finished_messages_total{labels}"] == count
        assert found['nsq_producer_messages_total{outcome="confirmed",producer="clicks"}'] == count
        assert server.end() == 0


def created(registry, name):
    """The time at which a line was 0, by OpenMetrics."""
    [found] = [
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == f"{name}_created" and sample.labels.get("outcome") in (None, "confirmed")
    ]
    return found


def test_a_line_begins_when_it_is_watched_and_not_at_the_first_scrape(registry, metrics):
    began = time.time()
    reader = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1")
    metrics.watch_reader(reader)
    with Producer("127.0.0.1:1") as producer:
        metrics.watch_producer(producer)
        watched = time.time()
        names = ["nsq_reader_received_messages", "nsq_reader_handler_seconds"]
        names += ["nsq_producer_messages", "nsq_producer_retried_messages"]
        for name in names:
            assert began <= created(registry, name) <= watched
