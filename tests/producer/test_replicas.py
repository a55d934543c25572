"""A copy of each message on several nsqds."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import InvalidOption, NotSent, OutcomeUnknown, PublishRefused
from tests.simulation import Cluster, simulated
from tests.support.daemons import wait_for
from tests.support.hub import counting_rounds
from tests.support.nsqds import answer_one, failures, good_nsqd, identified, nowhere, run_out_of_time, unanswered
from tests.support.peer import OK, PATIENCE, scripted_nsqd


def make(*addresses: str, **options: Any) -> Producer:
    options = {"own_thread": False, "timeout": PATIENCE, **options}
    return Producer(list(addresses), **options)


def test_each_message_goes_to_so_many_nsqds():
    with good_nsqd() as one, good_nsqd() as two, good_nsqd() as three:
        with make(one.address, two.address, three.address, replicas=2) as producer:
            for number in range(30):
                producer.publish("t", b"%d" % number)
            assert producer.stats()["confirmed"] == 30
        everything = sorted(one.bodies + two.bodies + three.bodies)
        assert everything == sorted([b"%d" % number for number in range(30)] * 2)
        for server in (one, two, three):
            assert len(set(server.bodies)) == len(server.bodies) > 0


def test_a_copy_that_cannot_be_sent_goes_to_another_nsqd():
    with good_nsqd() as one, good_nsqd() as two, make(nowhere(), one.address, two.address, replicas=2) as producer:
        producer.publish("t", b"x")
        assert one.bodies == two.bodies == [b"x"]


def test_batches_are_copied_too():
    with (
        good_nsqd() as one,
        good_nsqd() as two,
        make(one.address, two.address, replicas=2, batching=True) as producer,
    ):
        waiting = [gevent.spawn(producer.publish, "t", b"x") for _ in range(10)]
        gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)
        assert one.bodies == two.bodies
        assert producer.stats()["confirmed"] == 10


def test_a_message_whose_time_is_over_is_in_no_copy_that_is_sent_later():
    """Its publisher knows that it was not sent, and may have published it again."""
    with (
        scripted_nsqd() as one,
        scripted_nsqd() as two,
        make(one.address, two.address, replicas=2, batching=True, max_redial_delay=0.1) as producer,
    ):
        hasty = gevent.spawn(producer.publish, "t", b"hasty", timeout=PATIENCE / 2)
        patient = gevent.spawn(producer.publish, "t", b"patient")
        for server in (one, two):
            peer = identified(server)
            assert peer.line() == b"MPUB t"
            assert b"hasty" in peer.body()
            peer.error("E_BAD_BODY MPUB failed to read message count")
            peer.close()
        peers = [server.accept() for server in (one, two)]
        run_out_of_time(producer, PATIENCE / 2)
        with pytest.raises(NotSent):
            hasty.get(timeout=PATIENCE)
        for peer in peers:
            peer.identify(version="1.3.0")
            assert peer.line() == b"MPUB t"
            assert b"hasty" not in peer.body()
            peer.send(OK)
        patient.get(timeout=PATIENCE)


def test_too_few_nsqds():
    with pytest.raises(InvalidOption, match="replicas"):
        Producer("127.0.0.1:4150", replicas=2)
    with pytest.raises(InvalidOption, match="quorum"):
        Producer(["127.0.0.1:4150", "127.0.0.1:4152"], replicas=2, quorum=3)


def test_fewer_than_asked_for_is_unknown_and_says_who_has_it():
    away = nowhere()
    with good_nsqd() as one, make(one.address, away, replicas=2) as producer:
        waiting = gevent.spawn(producer.publish, "t", b"x")
        wait_for(lambda: one.bodies and not unanswered(producer, one.address) and failures(producer, away))
        run_out_of_time(producer)
        with pytest.raises(OutcomeUnknown) as caught:
            waiting.get(timeout=PATIENCE)
        assert caught.value.confirmed == (one.address,)
        assert str(caught.value).startswith(
            f"confirmed by {one.address} only; not sent to another in time: no connection"
        )
        assert "no room" not in str(caught.value)


def test_a_quorum_is_enough_and_the_rest_follows():
    with (
        scripted_nsqd() as late,
        good_nsqd() as one,
        make(one.address, late.address, replicas=2, quorum=1) as producer,
    ):
        producer.publish("t", b"x")
        assert one.bodies == [b"x"]
        peer = identified(late)
        assert (peer.line(), peer.body()) == (b"PUB t", b"x")
        peer.send(OK)


def test_copies_for_an_nsqd_that_stays_away_do_not_pile_up():
    with good_nsqd() as one, make(one.address, nowhere(), replicas=2, quorum=1) as producer:
        for number in range(20):
            producer.publish("t", b"%d" % number)
        run_out_of_time(producer)
        wait_for(lambda: producer.stats()["waiting"] == 0)
        assert len(one.bodies) == 20


def test_a_copy_that_waits_for_another_nsqd_does_not_make_the_hub_spin():
    """The nsqd that it avoids may be dialled at any time, but nothing wants it."""
    away = nowhere()
    with scripted_nsqd() as one, make(one.address, away, replicas=2, max_redial_delay=0.2) as producer:
        waiting = gevent.spawn(producer.publish, "t", b"x")
        peer = identified(one)
        answer_one(peer, b"x")
        wait_for(lambda: not unanswered(producer, one.address))
        peer.close()
        wait_for(lambda: not producer.stats()["connections"][one.address]["connected"])
        seen = failures(producer, away)
        with counting_rounds() as rounds:
            wait_for(lambda: failures(producer, away) >= seen + 4)
        assert rounds[0] < 1000  # a timer that is always due makes ten thousands
        run_out_of_time(producer)
        with pytest.raises(OutcomeUnknown):
            waiting.get(timeout=PATIENCE)


def test_nobody_there():
    with make(nowhere(), nowhere(), replicas=2, timeout=0.2) as producer, pytest.raises(NotSent):
        producer.publish("t", b"x")


def test_refused_by_all():
    with scripted_nsqd() as one, scripted_nsqd() as two, make(one.address, two.address, replicas=2) as producer:
        waiting = gevent.spawn(producer.publish, "t", b"x")
        for server in (one, two):
            peer = identified(server)
            assert peer.line() == b"PUB t"
            peer.error("E_BAD_MESSAGE no")
        with pytest.raises(PublishRefused):
            waiting.get(timeout=PATIENCE)


def test_refused_by_one():
    with scripted_nsqd() as one, good_nsqd() as two, make(one.address, two.address, replicas=2) as producer:
        waiting = gevent.spawn(producer.publish, "t", b"x")
        peer = identified(one)
        assert peer.line() == b"PUB t"
        wait_for(lambda: two.bodies and not unanswered(producer, two.address))
        peer.error("E_BAD_MESSAGE no")
        with pytest.raises(OutcomeUnknown) as caught:
            waiting.get(timeout=PATIENCE)
        assert caught.value.confirmed == (two.address,)


def test_a_deadline_while_one_answer_is_missing():
    with (
        scripted_nsqd() as one,
        good_nsqd() as two,
        make(one.address, two.address, replicas=2) as producer,
    ):
        waiting = gevent.spawn(producer.publish, "t", b"x")
        peer = identified(one)
        assert peer.line() == b"PUB t"
        wait_for(lambda: two.bodies and not unanswered(producer, two.address))
        run_out_of_time(producer)
        with pytest.raises(OutcomeUnknown) as caught:
            waiting.get(timeout=PATIENCE)
        assert (caught.value.address, caught.value.confirmed) == (one.address, (two.address,))
        producer.close(timeout=0)


@simulated(nsqds=2)
def test_what_a_killed_caller_published_is_counted_though_no_copy_was_sent(cluster: Cluster) -> None:
    """Its copies wait in full sockets, and are left out when there are new ones. All sleeps are in virtual time."""
    producer = cluster.producer(replicas=2, timeout=60, max_pending_bytes=10_000_000)
    producer.publish("t", b"connects")
    for nsqd in cluster.nsqds:
        nsqd.process.stand_still(5)
    filling = [gevent.spawn(producer.publish, "t", b"x" * 1_000_000) for _ in range(3)]
    gevent.sleep(1)
    killed = gevent.spawn(producer.publish, "t", b"killed")
    gevent.sleep(1)
    gevent.killall([killed, *filling])
    gevent.sleep(1)
    for connection in cluster.world.network.open_connections():
        connection.cut()
    gevent.sleep(10)
    producer.close()
    stats = producer.stats()
    assert sum(stats[name] for name in ("confirmed", "refused", "unknown", "not_sent")) == 5
