"""Every class of failure, with real sockets: what the caller hears, and what comes after."""

import logging
import time

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotRunning, NotSent, OutcomeUnknown, PublishRefused
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.nsqds import answer_all, good_nsqd, identified
from tests.support.peer import OK, PATIENCE, free_port, scripted_nsqd

# The connections in the hub of the test, and in a thread of their own.
pytestmark = pytest.mark.parametrize("own_thread", [False, True])


@pytest.fixture
def make(own_thread):
    """Makes Producers that are closed at the end."""
    made = []

    def make(*addresses, **options):
        producer = Producer(list(addresses), **{"own_thread": own_thread, "timeout": PATIENCE, **options})
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout=0)


@pytest.fixture
def nsqd():
    with scripted_nsqd() as server:
        yield server


@pytest.fixture
def other():
    with good_nsqd() as server:
        yield server


def nowhere():
    return f"127.0.0.1:{free_port()}"


# -- not sent -----------------------------------------------------------------------------------------


def test_nothing_listens(make):
    producer = make(nowhere(), timeout=0.3)
    started = time.monotonic()
    with pytest.raises(NotSent, match="Connection refused"):
        producer.publish("t", b"x")
    assert 0.25 < time.monotonic() - started < 3
    assert producer.stats()["not_sent"] == 1


def test_an_nsqd_that_is_away_is_passed_over(make, other):
    producer = make(nowhere(), other.address)
    for number in range(10):
        producer.publish("t", b"%d" % number)
    assert other.bodies == [b"%d" % number for number in range(10)]


def test_an_nsqd_that_was_away_is_found_when_it_is_there(make, own_thread):
    address = nowhere()
    producer = make(address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    wait_for(lambda: producer.stats()["connections"] and producer.stats()["connections"][address]["failures"])
    with running_nsqd("ours", tcp_address=address):
        waiting.get(timeout=PATIENCE)


def test_each_publish_that_waits_for_an_nsqd_that_is_away_sees_a_try(make):
    address = nowhere()
    producer = make(address, timeout=0.4)
    for tries in range(1, 8):
        with pytest.raises(NotSent, match="Connection refused"):
            producer.publish("t", b"x")
        assert producer.stats()["connections"][address]["failures"] >= tries
    with running_nsqd("ours", tcp_address=address):
        producer.publish("t", b"x", timeout=PATIENCE)


def test_a_peer_that_accepts_and_is_mute(make, nsqd, other):
    producer = make(nsqd.address, other.address, connect_timeout=1)
    producer.publish("t", b"x")
    assert other.bodies == [b"x"]
    alone = make(nsqd.address, timeout=0.3)
    with pytest.raises(NotSent, match="no connection"):
        alone.publish("t", b"x")


def test_a_connection_that_breaks_while_writing(make, nsqd, other):
    """More than the kernel takes: bytes are missing at the peer, so nsqd cannot have executed it."""
    body = bytes(8 * 1024 * 1024)
    producer = make(nsqd.address, max_msg_bytes=len(body))
    waiting = gevent.spawn(producer.publish, "t", body)
    peer = identified(nsqd)
    peer.take(1024)
    peer.reset()
    peer = identified(nsqd)
    assert peer.line() == b"PUB t"
    assert peer.body() == body
    peer.send(OK)
    waiting.get(timeout=PATIENCE)
    assert producer.stats()["retried"] == 1


def test_a_peer_that_reads_nothing(make, nsqd):
    """Commands beyond what the kernel takes are given up with the connection, and sent again elsewhere."""
    body = bytes(8 * 1024 * 1024)
    producer = make(nsqd.address, max_msg_bytes=len(body), write_timeout=0.1)
    waiting = gevent.spawn(producer.publish, "t", body)
    identified(nsqd)
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", body)
    peer.send(OK)
    waiting.get(timeout=PATIENCE)


def test_no_room_in_time(make, nsqd):
    producer = make(nsqd.address, max_pending_count=1)
    first = gevent.spawn(producer.publish, "t", b"first")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"first")
    with pytest.raises(NotSent, match="no room"):
        producer.publish("t", b"second", timeout=0.1)
    peer.send(OK)
    first.get(timeout=PATIENCE)
    third = gevent.spawn(producer.publish, "t", b"third")
    assert (peer.line(), peer.body()) == (b"PUB t", b"third")
    peer.send(OK)
    third.get(timeout=PATIENCE)


def test_those_who_wait_for_room_go_in_their_order(make, nsqd):
    producer = make(nsqd.address, max_pending_count=2)
    waiting = [gevent.spawn(producer.publish, "t", b"%d" % number) for number in range(20)]
    peer = identified(nsqd)
    for number in range(20):
        assert (peer.line(), peer.body()) == (b"PUB t", b"%d" % number)
        peer.send(OK)
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)


# -- outcome unknown ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
def test_killed_between_write_and_reply(make, nsqd, how):
    producer = make(nsqd.address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    getattr(peer, how)()
    with pytest.raises(OutcomeUnknown) as caught:
        waiting.get(timeout=PATIENCE)
    assert caught.value.address == nsqd.address
    again = gevent.spawn(producer.publish, "t", b"y")
    answer_one(identified(nsqd), b"y")
    again.get(timeout=PATIENCE)


def answer_one(peer, body):
    assert (peer.line(), peer.body()) == (b"PUB t", body)
    peer.send(OK)


def test_retry_unknown_takes_the_risk(make, nsqd, other):
    producer = make(nsqd.address, retry_unknown=True)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.close()
    answer_one(identified(nsqd), b"x")
    waiting.get(timeout=PATIENCE)


def test_what_is_unknown_stays_so_when_the_next_try_is_not_sent(make, nsqd):
    producer = make(nsqd.address, retry_unknown=True, timeout=0.5)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.close()
    with pytest.raises(OutcomeUnknown):
        waiting.get(timeout=PATIENCE)


def test_no_answer_in_time_and_the_next_goes_elsewhere(make, nsqd, other):
    """A mute nsqd is asked again only when it has said something."""
    producer = make(nsqd.address, other.address)
    script = gevent.spawn(identified, nsqd)
    peer = None
    # Until the mute one is connected, the other one gets everything.
    for _ in range(100):
        try:
            producer.publish("t", b"x", timeout=0.2)
        except OutcomeUnknown as exc:
            assert exc.address == nsqd.address
            peer = script.get(timeout=PATIENCE)
            break
        gevent.sleep(0.01)
    assert peer is not None
    for _ in range(5):
        producer.publish("t", b"y", timeout=1)
    assert producer.stats()["connections"][nsqd.address]["unanswered"] == 1
    # The late answer belongs to nobody, and makes the nsqd good again.
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    peer.send(OK)
    serving = gevent.spawn(answer_all, peer, bodies := [])
    while not bodies:
        producer.publish("t", b"z")
    serving.kill()


# -- refused ------------------------------------------------------------------------------------------


def test_one_offender_among_a_hundred(make, nsqd):
    """nsqd answers in order and executes nothing after a fatal error."""
    producer = make(nsqd.address)
    producer_first = gevent.spawn(producer.publish, "t", b"first")
    peer = identified(nsqd)
    answer_one(peer, b"first")
    producer_first.get(timeout=PATIENCE)
    waiting = {number: gevent.spawn(producer.publish, "t", b"%d" % number) for number in range(100)}
    taken = []
    for _ in range(100):
        assert peer.line() == b"PUB t"
        taken.append(int(peer.body()))
    for _ in range(40):
        peer.send(OK)
    peer.error("E_BAD_MESSAGE PUB message too big")
    peer.close()
    serving = gevent.spawn(answer_all, identified(nsqd), bodies := [])
    gevent.joinall(waiting.values(), timeout=PATIENCE)
    offender = taken[40]
    assert isinstance(waiting[offender].exception, PublishRefused)
    assert waiting[offender].exception.error.code == "E_BAD_MESSAGE"
    assert [number for number, greenlet in waiting.items() if greenlet.exception] == [offender]
    assert sorted(map(int, bodies)) == sorted(taken[41:])
    serving.kill()
    stats = producer.stats()
    assert (stats["confirmed"], stats["refused"], stats["retried"]) == (100, 1, 59)


@pytest.mark.parametrize("kind", KINDS)
def test_one_offender_among_a_hundred_at_a_whole_nsqd(make, kind):
    with running_nsqd(kind, max_msg_size=100) as nsqd:
        producer = make(nsqd.tcp_address)
        waiting = [
            gevent.spawn(producer.publish, "t", bytes(101) if number == 30 else b"%d" % number) for number in range(100)
        ]
        gevent.joinall(waiting, timeout=PATIENCE)
        failed = [(number, greenlet.exception) for number, greenlet in enumerate(waiting) if greenlet.exception]
        assert [number for number, _ in failed] == [30]
        assert isinstance(failed[0][1], PublishRefused)


def test_the_answers_before_a_refusal_count(make, nsqd):
    producer = make(nsqd.address)
    first = gevent.spawn(producer.publish, "t", b"a")
    peer = identified(nsqd)
    answer_one(peer, b"a")
    first.get(timeout=PATIENCE)
    results = [producer.publish_async("t", body) for body in (b"b", b"c")]
    for body in (b"b", b"c"):
        assert (peer.line(), peer.body()) == (b"PUB t", body)
    peer.send(OK)
    peer.error("E_PUB_FAILED PUB failed exiting")
    peer.close()
    results[0].get(timeout=PATIENCE)
    with pytest.raises(PublishRefused):
        results[1].get(timeout=PATIENCE)


# -- callers that go away -----------------------------------------------------------------------------


def test_a_killed_caller_abandons_its_answer_only(make, nsqd):
    producer = make(nsqd.address)
    killed = gevent.spawn(producer.publish, "t", b"killed")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"killed")
    killed.kill()
    following = gevent.spawn(producer.publish, "t", b"following")
    assert (peer.line(), peer.body()) == (b"PUB t", b"following")
    peer.error("E_PUB_FAILED the first one's")  # belongs to the one whose caller is gone
    peer.close()
    answer_one(identified(nsqd), b"following")
    following.get(timeout=PATIENCE)


def test_a_caller_that_is_gone_before_its_publish_was_sent(make, nsqd):
    producer = make(nsqd.address)
    killed = gevent.spawn(producer.publish, "t", b"killed")
    following = gevent.spawn(producer.publish, "t", b"following")
    gevent.sleep(0)
    killed.kill()
    answer_one(identified(nsqd), b"following")
    following.get(timeout=PATIENCE)


# -- the end ------------------------------------------------------------------------------------------


def test_close_waits_for_answers(make, nsqd):
    producer = make(nsqd.address)
    results = [producer.publish_async("t", b"x") for _ in range(3)]
    closing = gevent.spawn(producer.close)
    peer = identified(nsqd)
    gevent.sleep(0.05)
    assert not closing.ready()
    with pytest.raises(NotRunning):
        producer.publish("t", b"y")
    for _ in range(3):
        answer_one(peer, b"x")
    assert closing.get(timeout=PATIENCE) is True
    assert [result.get(timeout=PATIENCE) for result in results] == [None] * 3
    assert peer.ended()
    assert producer.close() is True
    stats = producer.stats()
    assert (stats["state"], stats["confirmed"], stats["waiting"]) == ("closed", 3, 0)


def test_close_gives_up_at_its_time(make, nsqd):
    producer = make(nsqd.address, max_pending_count=1)
    sent = producer.publish_async("t", b"sent")
    queued = gevent.spawn(producer.publish, "t", b"queued")
    peer = identified(nsqd)
    assert peer.line() == b"PUB t"
    assert producer.close(timeout=0.05) is False
    with pytest.raises(OutcomeUnknown):
        sent.get(timeout=PATIENCE)
    with pytest.raises(NotSent):
        queued.get(timeout=PATIENCE)


def test_publish_async_waits_when_too_much_waits_already(make, nsqd):
    producer = make(nsqd.address, max_pending_count=10)
    results = [producer.publish_async("t", b"%d" % number) for number in range(10)]
    late = gevent.spawn(producer.publish_async, "t", b"10")
    gevent.sleep(0.05)
    assert not late.ready()
    serving = gevent.spawn(answer_all, identified(nsqd), bodies := [])
    results.append(late.get(timeout=PATIENCE))
    for result in results:
        result.get(timeout=PATIENCE)
    assert bodies == [b"%d" % number for number in range(11)]
    serving.kill()


def test_publish_async_without_room_in_time(make, nsqd):
    producer = make(nsqd.address, max_pending_count=1, timeout=0.2)
    results = [producer.publish_async("t", b"%d" % number) for number in range(2)]
    for result in results:
        with pytest.raises(NotSent):
            result.get(timeout=PATIENCE)


def test_failures_are_logged_and_reported(make, nsqd, other, caplog):
    heard = []
    caplog.set_level(logging.INFO)
    away = nowhere()
    producer = make(
        away,
        other.address,
        on_connect=lambda address: heard.append(("connect", address)),
        on_disconnect=lambda address, error: heard.append(("disconnect", address, error)),
        on_error=lambda address, error: heard.append(("error", address, type(error).__name__)),
    )
    producer.publish("t", b"x")
    wait_for(lambda: ("error", away, "ConnectionFailed") in heard)
    producer.close()
    assert ("connect", other.address) in heard
    assert ("disconnect", other.address, None) in heard
    assert "next try in" in caplog.text
