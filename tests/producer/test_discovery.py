"""The nsqds of a Producer, found through nsqlookupd."""

import re
from contextlib import suppress
from functools import partial

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotSent, OutcomeUnknown
from tests.support.daemons import KINDS, running_nsqd, running_nsqlookupd, wait_for
from tests.support.lookupds import FAST, Lookupd
from tests.support.nsqds import good_nsqd, nowhere, run_out_of_time, unanswered, why_not_sent
from tests.support.patient import LookupdClient
from tests.support.peer import OK, PATIENCE, scripted_nsqd


@pytest.mark.parametrize("own_thread", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_all_nsqds_whatever_their_topics(kind, own_thread):
    connected: set[str] = set()
    with (
        running_nsqlookupd(kind) as lookupd,
        running_nsqd(kind, node_id=1, lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
        running_nsqd(kind, node_id=2, lookupd_tcp_addresses=[lookupd.tcp_address]) as two,
        LookupdClient(lookupd.http_address) as client,
    ):
        wait_for(lambda: len(client.nodes()) == 2)
        with Producer(
            lookupd_http_addresses=lookupd.http_address, on_connect=connected.add, own_thread=own_thread
        ) as producer:

            def publish() -> bool:
                producer.publish("t", b"x")
                return connected == {one.tcp_address, two.tcp_address}

            wait_for(publish)


@pytest.mark.parametrize("own_thread", [False, True])
def test_too_few_nsqds_for_the_copies(own_thread):
    with good_nsqd() as nsqd, Lookupd() as lookupd:
        lookupd.nsqds = [nsqd]
        with Producer(lookupd_http_addresses=lookupd.address, replicas=2, own_thread=own_thread) as producer:
            result = producer.publish_async("t", b"x")
            wait_for(
                lambda: producer.stats()["waiting"] == 1 and nsqd.bodies and not unanswered(producer, nsqd.address)
            )
            run_out_of_time(producer)
            with pytest.raises(OutcomeUnknown, match="not sent to another in time: nsqlookupd knows no other"):
                result.get(timeout=PATIENCE)


def test_a_filter():
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(node_id=1, lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
        running_nsqd(node_id=2, lookupd_tcp_addresses=[lookupd.tcp_address]) as two,
        LookupdClient(lookupd.http_address) as client,
    ):
        wait_for(lambda: len(client.nodes()) == 2)
        producer = Producer(
            lookupd_http_addresses=[lookupd.http_address],
            discovery_filter=lambda node: node.tcp_address == two.tcp_address,
        )
        with producer:
            producer.publish("t", b"x")
            assert list(producer.stats()["connections"]) == [two.tcp_address]
        assert one.tcp_address != two.tcp_address


def test_no_nsqd_and_no_nsqlookupd(caplog):
    errors: list[object] = []
    with Producer(lookupd_http_addresses=nowhere(), on_error=lambda url, error: errors.append(error)) as producer:
        assert "no nsqd was found yet" in why_not_sent(producer)
        wait_for(lambda: errors)
        assert re.search(r"no nsqd was found yet; http://.*/nodes: Connection refused", why_not_sent(producer))
        wait_for(lambda: "/nodes: Connection refused" in caplog.text)
    with (
        running_nsqlookupd() as lookupd,
        Producer(lookupd_http_addresses=lookupd.http_address) as producer,
    ):
        waiting = gevent.spawn(producer.publish, "t", b"x")
        wait_for(lambda: producer._started().discovery.surveyed)
        run_out_of_time(producer)
        with pytest.raises(NotSent, match="knows no nsqd"):
            waiting.get(timeout=PATIENCE)


def test_nsqds_come_and_go():
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(node_id=1, lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
        LookupdClient(lookupd.http_address) as client,
        Producer(lookupd_http_addresses=lookupd.http_address, lookupd_poll_interval=0.1) as producer,
    ):
        wait_for(lambda: client.nodes())
        producer.publish("t", b"x")
        with running_nsqd(node_id=2, lookupd_tcp_addresses=[lookupd.tcp_address]) as two:
            wait_for(lambda: set(producer.stats()["connections"]) == {one.tcp_address, two.tcp_address})
        # It is away and not listed any more: forgotten, not dialled.
        wait_for(lambda: set(producer.stats()["connections"]) == {one.tcp_address})
        producer.publish("t", b"y")


@pytest.mark.parametrize("own_thread", [False, True])
def test_one_that_is_no_longer_listed_while_it_is_dialled_is_left_alone(own_thread):
    """Its connection belonged to nobody, and stayed open after close()."""
    connected: list[str] = []
    with scripted_nsqd() as slow, good_nsqd() as good, Lookupd() as lookupd:
        lookupd.nsqds = [slow]
        with Producer(
            lookupd_http_addresses=lookupd.address, own_thread=own_thread, on_connect=connected.append, **FAST
        ) as producer:
            publishing = gevent.spawn(producer.publish, "t", b"x", timeout=PATIENCE)
            peer = slow.accept()
            assert (peer.take(4), peer.line()) == (b"  V2", b"IDENTIFY")
            peer.body()
            lookupd.nsqds = [good]
            wait_for(lambda: list(producer.stats()["connections"]) == [good.address])
            with suppress(OSError):
                peer.send(OK)
            assert peer.ended()
            publishing.get(timeout=PATIENCE)
            assert connected == [good.address]


def test_a_failure_of_an_nsqlookupd_is_not_named_once_it_has_answered():
    with running_nsqlookupd() as lookupd:
        lookupd.stop()
        with Producer(lookupd_http_addresses=lookupd.http_address, lookupd_poll_interval=0.1) as producer:
            assert "no nsqd was found yet" in why_not_sent(producer)
            wait_for(lambda: failures(producer))
            lookupd.start()
            wait_for(lambda: not failures(producer))
            assert why_not_sent(producer).endswith("nsqlookupd knows no nsqd")


def failures(producer: Producer) -> list[str]:
    poller = producer._started().discovery._poller
    return [] if poller is None else [str(failure) for failure in poller.failures.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_port_is_asked_for(kind):
    """nsqd's ports where nsqlookupd's is wanted, and nsqlookupd's where nsqd's is."""
    with running_nsqlookupd(kind) as lookupd, running_nsqd(kind) as nsqd:
        for address, text in [
            (nsqd.tcp_address, "the port of the HTTP API"),
            (nsqd.http_address, "the right port?"),
        ]:
            with Producer(lookupd_http_addresses=address) as producer:
                producer.publish_async("t", b"x")
                [failure] = wait_for(partial(failures, producer))
                assert text in failure
                producer.close(0)  # else it waits for an nsqd
        with Producer(lookupd.tcp_address) as producer:
            producer.publish_async("t", b"x")
            text = "speaks nsqlookupd's TCP protocol; is this the port of nsqd"
            wait_for(lambda: text in producer._started().why())
            producer.close(0)


def test_all_publishes_that_wait_have_one_poller():
    with running_nsqlookupd() as lookupd, Producer(lookupd_http_addresses=lookupd.http_address) as producer:
        producer.publish_async("t", b"x")
        pool = producer._started()
        poller = wait_for(lambda: pool.discovery._poller)
        producer.publish_async("t", b"y")
        wait_for(lambda: len(pool.queue) == 2)
        assert pool.discovery._poller is poller
        producer.close(0)  # else it waits for an nsqd


def test_publishes_wait_for_the_first_nsqd():
    with (
        running_nsqlookupd() as lookupd,
        Producer(lookupd_http_addresses=lookupd.http_address, lookupd_poll_interval=0.1, timeout=PATIENCE) as producer,
    ):
        waiting = gevent.spawn(producer.publish, "t", b"x")
        wait_for(lambda: producer.stats()["waiting"] == 1)
        with running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address]):
            waiting.get(timeout=PATIENCE)
