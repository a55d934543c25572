"""Flask in the real gunicorn: publishing from requests, and readers in the workers.

Each kind of worker publishes in ``test_gunicorn_load``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_like import Producer, Reader
from tests.support.daemons import KINDS, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.web import CONF, IS_THOROUGH, WORKERS, Consumed, gunicorn, publish_from

pytestmark = pytest.mark.servers

#: Requests of one test: enough for both workers and all clients to be busy at once; with the thorough profile, many.
NAMES = [f"n{number}" for number in range(5000 if IS_THOROUGH else 500)]


@pytest.fixture(params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


def test_every_request_answered_200_is_a_message_consumed_once(tmp_path: Path, nsqd: Running) -> None:
    consumed = Consumed()
    with (
        gunicorn(tmp_path, *WORKERS["gevent"], NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
        Reader("clicks", "archive", consumed.handle, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=500),
    ):
        answers = publish_from(50, server.port, NAMES)
        assert (answers.other, answers.refused, answers.broken) == ([], [], [])
        wait_for(lambda: len(consumed) >= len(NAMES), "all messages")
        assert server.end() == 0
    assert sorted(answers.ok) == sorted(NAMES)
    assert consumed == dict.fromkeys(NAMES, 1)
    assert len(server.pids("began")) == 2


@pytest.mark.parametrize("kind", ["gevent", "gthread"])
def test_preloaded_each_worker_has_a_producer_and_readers_of_its_own(tmp_path: Path, kind: str) -> None:
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(
            tmp_path,
            *WORKERS[kind],
            "--preload",
            conf=CONF,
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
            NSQ_LOOKUPD_HTTP_ADDRESSES=lookupd.http_address,
            NSQ_LOOKUPD_POLL_INTERVAL="0.2",
        ) as server,
    ):
        for number in range(200):
            producer.publish("work", f"0-{number}".encode())
        wait_for(lambda: len(server.noted("handled")) >= 200, "all messages")
        answers = publish_from(10, server.port, NAMES[:100])
        assert server.end() == 0
        assert len(server.noted("loaded")) == 1
        assert sorted(answers.ok) == sorted(NAMES[:100])
        assert sorted(server.noted("handled")) == sorted(f"0-{number}" for number in range(200))
        assert "Traceback" not in server.log


@pytest.mark.parametrize("patch", ["", "from gevent import monkey\nmonkey.patch_all()\n"], ids=["unpatched", "patched"])
def test_a_gevent_worker_warns_if_the_application_was_loaded_unpatched(tmp_path: Path, patch: str) -> None:
    flags = [*WORKERS["gevent"], "--preload"]
    with gunicorn(tmp_path, *flags, conf=patch + CONF, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1") as server:
        assert server.log.count("loaded before gevent patched this worker") == (0 if patch else 2)


def test_a_worker_without_readers_says_what_to_do(tmp_path: Path) -> None:
    with gunicorn(tmp_path, conf=CONF, app="wsgiref.simple_server:demo_app") as server:
        wait_for(lambda: server.process.poll() is not None, "the end")
        assert 'WorkerReaders("module:function")' in server.log


@pytest.mark.parametrize(
    ("source", "factory"),
    [
        pytest.param("tests.support.clicks_app:nsq", "create_app()", marks=pytest.mark.sample),
        ("tests.support.clicks_app:nsq", "create_wrapped()"),
        ("tests.support.clicks_app:readers_of_one_channel", "create_app()"),
    ],
)
def test_readers_from_a_place_of_their_own(tmp_path: Path, source: str, factory: str) -> None:
    conf = CONF.replace("WorkerReaders()", f"WorkerReaders({source!r})")
    app = f"tests.support.clicks_app:{factory}"
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        gunicorn(tmp_path, "-k", "gthread", conf=conf, app=app, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server,
    ):
        producer.publish("work", b"0-x")
        wait_for(lambda: server.noted("handled"), "the message")
        assert server.noted("handled") == ["0-x"]
