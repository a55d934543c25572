"""``run``: Readers with their pages, in this process."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest
from prometheus_client import CollectorRegistry

from gnsq_like import Batch, Producer, Reader, run
from gnsq_like.contrib.prometheus import Metrics
from gnsq_like.errors import InvalidAddress, InvalidOption, NSQError
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.reading import ignore
from tests.support.web import get

LINE = re.compile(r"(?:health|metrics) on http://127\.0\.0\.1:(\d+)/")


@contextmanager
def running(caplog: pytest.LogCaptureFixture, *readers: Reader, **options) -> Iterator[list[int]]:
    """``run`` in a greenlet; the ports of its pages."""
    caplog.set_level("INFO", "gnsq_like.workers.reader_process")
    greenlet = gevent.spawn(run, *readers, **options)

    def ports() -> list[int]:
        return [int(found[1]) for line in caplog.messages if (found := LINE.match(line))]

    wait_for(lambda: greenlet.dead or all(reader.stats()["connections"] for reader in readers))
    try:
        yield ports()
    finally:
        for reader in readers:
            reader.stop()
        greenlet.get(timeout=60)


def asked(port: int, path: str) -> tuple[int, str]:
    """In a thread, because the pages are served by this one."""
    answer: tuple[int, str] = gevent.get_hub().threadpool.apply(get, (port, path))
    return answer


def readers_of(nsqd: Running, handler=ignore) -> list[Reader]:
    return [Reader("t", name, handler, nsqd_tcp_addresses=nsqd.tcp_address) for name in "ab"]


def test_health_and_metrics_of_all_at_one_address(caplog: pytest.LogCaptureFixture) -> None:
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        first, second = readers_of(nsqd)
        second.handler = batch = Batch(lambda messages: None, size=5, interval=0.5)
        with running(caplog, first, second, health="127.0.0.1:0", metrics="127.0.0.1:0") as [port]:
            producer.publish("t", b"x")
            wait_for(lambda: [reader.stats()["finished"] for reader in (first, second)] == [1, 1])
            status, health = asked(port, "/healthz")
            assert (status, health.count('"problem": null')) == (200, 2)
            metrics = asked(port, "/metrics")[1]
            for channel in "ab":
                for name in ("received_messages_total", "handler_seconds_count"):
                    assert f'nsq_reader_{name}{{channel="{channel}",topic="t"}} 1.0' in metrics
            assert asked(port, "/")[0] == 404
            second.stop()
            assert asked(port, "/healthz")[0] == 503
        # The handlers that were timed are the user's again.
        assert (first.handler, second.handler) == (ignore, batch)


def test_addresses_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    with running_nsqd() as nsqd:
        with running(caplog, *readers_of(nsqd), health="127.0.0.1:0", metrics="localhost:0") as ports:
            [port] = ports  # LINE matches 127.0.0.1 only
            assert (asked(port, "/healthz")[0], asked(port, "/metrics")[0]) == (200, 404)
        assert any("metrics on http://localhost:" in line for line in caplog.messages)


def test_the_users_own_metrics_are_at_the_address_of_health(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(CollectorRegistry())
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        metrics.watch_producer(producer, "mine")
        producer.publish("other", b"x")
        with running(caplog, *readers_of(nsqd), health="127.0.0.1:0", metrics=metrics) as [port]:
            page = asked(port, "/metrics")[1]
    assert 'nsq_producer_messages_total{outcome="confirmed",producer="mine"} 1.0' in page
    with pytest.raises(InvalidOption, match="address of health"):
        run(*readers_of(nsqd), metrics=metrics)


def test_what_is_wrong_is_said_before_anything_starts() -> None:
    reader = Reader("t", "c", ignore, nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(InvalidOption, match="one Reader or several"):
        run()
    with pytest.raises(InvalidAddress):
        run(reader, health="nowhere")
    with pytest.raises(InvalidAddress, match="host:port"):
        run(reader, health="unix:/tmp/x")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(NSQError, match="cannot listen"):
        run(reader, health=f"127.0.0.1:{taken.getsockname()[1]}")
    assert reader.stats()["state"] == "new"
    assert reader.handler is ignore
