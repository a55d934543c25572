"""Discovery over scripted nsqlookupds: all asked at once, united, and none can hold up the others."""

import json
import time
from urllib.parse import parse_qs

import gevent
import pytest
from gevent.event import Event
from gevent.pywsgi import WSGIServer

from gnsq_like import Reader
from gnsq_like.errors import HTTPError
from tests.reader.test_scripted import answer_cls
from tests.support.daemons import KINDS, running_nsqd, running_nsqlookupd, wait_for
from tests.support.peer import PATIENCE, free_port, scripted_nsqd

FAST = {"lookupd_poll_interval": 0.2, "lookupd_poll_jitter": 0.0}


class Lookupd:
    """A nsqlookupd whose answer the test sets: a list of nsqds, or a function of (environ, start_response)."""

    def __init__(self):
        self.nsqds = []
        self.answer = self.lookup
        self.asked = []
        self.server = WSGIServer(("127.0.0.1", 0), lambda *call: self.answer(*call), log=None, error_log=None)

    def lookup(self, environ, start_response):
        self.asked.append((time.monotonic(), environ["PATH_INFO"], parse_qs(environ["QUERY_STRING"]), environ))
        producers = [
            {
                "broadcast_address": nsqd.address.rpartition(":")[0].strip("[]"),
                "hostname": "h",
                "remote_address": "127.0.0.1:1",
                "tcp_port": int(nsqd.address.rpartition(":")[2]),
                "http_port": 1,
                "version": "1.3.0",
            }
            for nsqd in self.nsqds
        ]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"channels": [], "producers": producers}).encode()]

    @property
    def address(self):
        return f"127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(timeout=1)


@pytest.fixture
def lookupd():
    with Lookupd() as server:
        yield server


@pytest.fixture
def nsqd():
    with scripted_nsqd() as server:
        yield server


def reading(lookupds, handler=lambda message: None, **options):
    addresses = [each if isinstance(each, str) else each.address for each in lookupds]
    return Reader("t", "c", handler, lookupd_http_addresses=addresses, **(FAST | options))


def serve(nsqd):
    """Accept a connection and answer up to its first RDY."""
    peer = nsqd.accept()
    peer.subscribe()
    assert peer.line().startswith(b"RDY")
    return peer


def test_the_answers_of_all_are_united_and_each_nsqd_is_connected_once(nsqd):
    with Lookupd() as one, Lookupd() as two, scripted_nsqd() as other:
        one.nsqds = [nsqd]
        two.nsqds = [nsqd, other]
        with reading([one, two], max_in_flight=2) as reader:
            peers = [serve(nsqd), serve(other)]
            wait_for(lambda: len(one.asked) >= 3 and len(two.asked) >= 3)
            assert len(reader.stats()["connections"]) == 2
            for peer in peers:
                gevent.spawn(answer_cls, peer)
        assert one.asked[0][1:3] == ("/lookup", {"topic": ["t"]})


@pytest.mark.parametrize("fault", ["refused", "mute", "status 500", "not JSON", "topic unknown"])
def test_one_nsqlookupd_that_fails_holds_up_nobody(lookupd, nsqd, fault):
    lookupd.nsqds = [nsqd]
    errors = []
    with Lookupd() as broken:
        release = Event()

        def answer(environ, start_response):
            if fault == "mute":
                release.wait()
            status = {"status 500": "500 INTERNAL", "topic unknown": "404 NOT FOUND"}.get(fault, "200 OK")
            start_response(status, [("Content-Type", "application/json")])
            return [b'{"message":"TOPIC_NOT_FOUND"}' if fault == "topic unknown" else b"<html>"]

        broken.answer = answer
        address = f"127.0.0.1:{free_port()}" if fault == "refused" else broken.address
        reader = reading(
            [address, lookupd], lookupd_timeout=0.5, on_error=lambda where, error: errors.append((where, error))
        )
        with reader:
            peer = serve(nsqd)
            if fault != "topic unknown":
                wait_for(lambda: errors)
                assert address in errors[0][0]
                assert isinstance(errors[0][1], HTTPError)
            else:
                wait_for(lambda: len(lookupd.asked) >= 3)
                assert not errors
            gevent.spawn(answer_cls, peer)
        release.set()


def test_a_mute_nsqlookupd_does_not_freeze_the_hub(nsqd):
    with Lookupd() as mute:
        release = Event()
        mute.answer = lambda environ, start_response: release.wait()
        with reading([mute], lookupd_timeout=5):
            late = 0.0
            for _ in range(20):
                started = time.monotonic()
                gevent.sleep(0.01)
                late = max(late, time.monotonic() - started)
        release.set()
    assert late < 0.5


def test_a_mute_nsqlookupd_does_not_hold_up_the_first_connection(lookupd, nsqd):
    lookupd.nsqds = [nsqd]
    with Lookupd() as mute:
        release = Event()
        mute.answer = lambda environ, start_response: release.wait()
        with reading([mute, lookupd], lookupd_timeout=30):
            started = time.monotonic()
            peer = serve(nsqd)
            assert time.monotonic() - started < 5
            gevent.spawn(answer_cls, peer)
        release.set()


def test_a_topic_that_is_not_there_yet_is_asked_for_again_soon(lookupd, nsqd):
    with reading([lookupd], lookupd_poll_interval=60):
        wait_for(lambda: len(lookupd.asked) == 1)
        lookupd.nsqds = [nsqd]
        gevent.spawn(answer_cls, serve(nsqd))
    assert len(lookupd.asked) == 2


def test_the_authorization_is_sent_and_the_path_kept(lookupd, nsqd):
    lookupd.nsqds = [nsqd]
    with reading([f"http://{lookupd.address}/prefix"], lookupd_authorization=lambda: "Bearer fresh"):
        gevent.spawn(answer_cls, serve(nsqd))
    _, path, _, environ = lookupd.asked[0]
    assert path == "/prefix/lookup"
    assert environ["HTTP_AUTHORIZATION"] == "Bearer fresh"


def test_the_filter_leaves_nsqds_out(lookupd, nsqd):
    with scripted_nsqd() as unwanted:
        lookupd.nsqds = [unwanted, nsqd]
        with reading([lookupd], discovery_filter=lambda node: node.tcp_address != unwanted.address) as reader:
            peer = serve(nsqd)
            wait_for(lambda: len(lookupd.asked) >= 3)
            assert list(reader.stats()["connections"]) == [nsqd.address]
            gevent.spawn(answer_cls, peer)


def test_an_nsqd_that_is_no_longer_listed_is_kept_while_it_lives_and_not_dialled_again(lookupd, nsqd):
    lookupd.nsqds = [nsqd]
    got = Event()
    with reading([lookupd], lambda message: got.set()) as reader:
        peer = serve(nsqd)
        lookupd.nsqds = []
        rounds = len(lookupd.asked)
        wait_for(lambda: len(lookupd.asked) >= rounds + 2)
        peer.messages(b"0123456789abcdef")
        assert got.wait(PATIENCE)
        peer.close()
        wait_for(lambda: not reader.stats()["connections"])
        rounds = len(lookupd.asked)
        wait_for(lambda: len(lookupd.asked) >= rounds + 2)
        assert not reader.stats()["connections"]


def test_a_lost_connection_asks_again_soon(lookupd, nsqd):
    lookupd.nsqds = [nsqd]
    with reading([lookupd], lookupd_poll_interval=60):
        peer = serve(nsqd)
        lost = time.monotonic()
        peer.close()
        again = serve(nsqd)
        assert 0.4 < time.monotonic() - lost < 5
        gevent.spawn(answer_cls, again)
    assert len(lookupd.asked) == 2


def test_a_listed_nsqd_that_fails_is_left_alone_for_a_while(lookupd):
    with scripted_nsqd() as closed:
        address = closed.address
    lookupd.nsqds = [type("Gone", (), {"address": address})]
    errors = []
    with reading([lookupd], lookupd_poll_interval=0.1, on_error=lambda *error: errors.append(error)):
        wait_for(lambda: len(lookupd.asked) >= 6)
    # 8·2^k s or the poll interval, whichever is less: one try a round at most, and not more.
    assert 1 <= len(errors) <= 6


def test_the_interval_has_jitter(lookupd):
    with reading([lookupd], lookupd_poll_interval=0.05, lookupd_poll_jitter=1.0):
        wait_for(lambda: len(lookupd.asked) >= 12)
    times = [when for when, *_ in lookupd.asked]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert max(gaps) - min(gaps) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_an_nsqd_that_appears_later_is_found(kind):
    with running_nsqlookupd(kind) as lookupd:
        got = Event()
        with (
            Reader("t", "c", lambda message: got.set(), lookupd_http_addresses=lookupd.http_address, **FAST),
            running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
        ):
            from gnsq_like import Producer

            with Producer(nsqd.tcp_address) as producer:
                producer.publish("t", b"x")
                assert got.wait(PATIENCE)
