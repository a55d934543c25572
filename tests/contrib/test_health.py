"""Which Readers are healthy: real Readers in each state."""

import json
from contextlib import contextmanager

import pytest

from gnsq_like import Producer, Reader
from gnsq_like.contrib.health import Health, report
from gnsq_like.contrib.shared.outbox.relay import Relay, RelayThread
from tests.support.daemons import running_nsqd, running_nsqlookupd, wait_for
from tests.support.outboxes import Memory
from tests.support.peer import scripted_nsqd

NOWHERE = "127.0.0.1:1"


def problem(reader: Reader) -> str | None:
    healthy, answer = report([reader])
    [reported] = answer["readers"]
    assert healthy == (reported["problem"] is None) == (answer["status"] == "ok")
    found: str | None = reported["problem"]
    return found


@contextmanager
def reading(**options):
    with Reader("t", "c", print, **options) as reader:
        yield reader


def test_not_started_running_and_stopped():
    with running_nsqd() as nsqd:
        reader = Reader("t", "c", print, nsqd_tcp_addresses=nsqd.tcp_address)
        assert problem(reader) == "not started"
        with reader:
            wait_for(lambda: problem(reader) is None, "a connection")
            reader.pause()
            assert problem(reader) is None
        assert problem(reader) == "stopped"


def test_an_nsqd_that_is_away():
    with reading(nsqd_tcp_addresses=NOWHERE) as reader:
        assert problem(reader) == f"not connected to any of {NOWHERE}"


def test_one_nsqd_of_two_is_enough():
    with running_nsqd() as nsqd, reading(nsqd_tcp_addresses=[nsqd.tcp_address, NOWHERE]) as reader:
        wait_for(lambda: problem(reader) is None, "a connection")
        assert report([reader])[1]["readers"][0]["nsqds"] == [nsqd.tcp_address]


def test_a_topic_without_nsqds_needs_no_connection():
    with running_nsqlookupd() as lookupd, reading(lookupd_http_addresses=lookupd.http_address) as reader:
        wait_for(lambda: problem(reader) is None, "an answer")
        assert report([reader])[1]["readers"][0]["nsqds"] == []


def test_no_nsqlookupd_answers():
    with reading(lookupd_http_addresses=NOWHERE) as reader:
        assert problem(reader) == "no nsqlookupd has answered yet"


def test_backoff_is_reported_and_healthy():
    def fail(message):
        raise ValueError("the database is away")

    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        Reader("t", "c", fail, nsqd_tcp_addresses=nsqd.tcp_address, backoff_multiplier=60) as reader,
    ):
        producer.publish("t", b"x")
        wait_for(lambda: reader.stats()["backoff_level"] == 1, "backoff")
        assert problem(reader) is None
        reported = report([reader])[1]["readers"][0]
        assert (reported["backoff_level"], reported["failed"], reported["requeued"]) == (1, 1, 1)


def test_a_pause_is_reported_and_healthy():
    with running_nsqd() as nsqd, reading(nsqd_tcp_addresses=nsqd.tcp_address) as reader:
        wait_for(lambda: reader.stats()["connections"], "the connection")
        assert report([reader])[1]["readers"][0]["paused"] is False
        reader.pause()
        assert problem(reader) is None
        assert report([reader])[1]["readers"][0]["paused"] is True


def test_every_nsqd_refuses_for_good():
    with scripted_nsqd() as nsqd, reading(nsqd_tcp_addresses=nsqd.address) as reader:
        peer = nsqd.accept()
        peer.identify(version="1.3.0")
        peer.line()
        peer.error("E_UNAUTHORIZED AUTH failed for SUB")
        wait_for(lambda: reader.stats()["state"] == "stopped", "the end")
        found = problem(reader)
        assert found is not None
        assert found.startswith("stopped: ")
        assert "E_UNAUTHORIZED" in found


def test_a_producer_whose_nsqd_is_away_is_reported_with_the_reason():
    statuses: list[str] = []
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address, fail_fast=True, own_thread=False) as producer:
        producer.publish("t", b"x")
        healthy, answer = report([], [producer])
        [reported] = answer["producers"]
        assert (healthy, answer["status"], reported["problem"]) == (True, "ok", None)
        assert (reported["nsqds"], reported["confirmed"]) == ([nsqd.tcp_address], 1)
        nsqd.stop()
        wait_for(lambda: producer.stats()["away"], "the circuit")
        page = Health([], [producer])({"REQUEST_METHOD": "GET"}, lambda status, headers: statuses.append(status))
        answer = json.loads(b"".join(page))
        [reported] = answer["producers"]
        assert answer["status"] == "degraded"
        assert f"no connection to {nsqd.tcp_address}" in reported["problem"]
        assert reported["nsqds"] == []
    # Not unhealthy: other pages work, and a restart would not cure it.
    assert statuses == ["200 OK"]


def test_a_relay_that_cannot_publish_is_reported_with_its_lag():
    store = Memory()
    with Producer("127.0.0.1:1", fail_fast=True) as producer:
        relay = Relay(store, producer, poll_interval=0.01, name="shop")
        with RelayThread(relay):
            wait_for(lambda: relay.stats()["state"] == "running", "the relay")
            assert report([], [], [relay])[1]["status"] == "ok"
            store.add("orders", "", b"x")
            wait_for(lambda: relay.stats()["problem"] and relay.stats()["waiting"], "the problem")
            healthy, answer = report([], [], [relay])
    [reported] = answer["outboxes"]
    assert (healthy, answer["status"]) == (True, "degraded")
    assert (reported["name"], reported["waiting"], reported["lag_seconds"]) == ("shop", 1, 7.0)
    assert "no connection to 127.0.0.1:1" in reported["problem"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_wsgi_application(method):
    started: list[tuple[str, list[tuple[str, str]]]] = []
    reader = Reader("t", "c", print, nsqd_tcp_addresses=NOWHERE)
    application = Health(lambda: [reader])
    body = b"".join(application({"REQUEST_METHOD": method}, lambda status, headers: started.append((status, headers))))
    [(status, headers)] = started
    assert status == "503 Service Unavailable"
    assert dict(headers)["Content-Type"] == "application/json"
    if method == "GET":
        assert json.loads(body)["readers"][0]["topic"] == "t"
        assert int(dict(headers)["Content-Length"]) == len(body)
    else:
        assert body == b""


def test_no_readers_are_healthy():
    assert Health([])({"REQUEST_METHOD": "GET"}, lambda status, headers: None) == [
        b'{\n "status": "ok",\n "readers": []\n}\n'
    ]
