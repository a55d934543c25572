"""What the driver says of daemons that do not answer; ``test_driver`` has the batches without them."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

pytest.importorskip("pyarrow")

from gnsq_like import Connection
from gnsq_like.cluster.rounds import Unreachable
from gnsq_like.options import ConnectionOptions
from gnsq_like.spark.format_options import SourceOptions, parse_options
from gnsq_like.spark.source.nsqds import _HTTP_TIMEOUT, Nsqds
from gnsq_like.spark.source.plan import Depth, Queue
from gnsq_like.spark.staging.offsets import TopicChannel
from tests.support.daemons import Process, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.processes import stopped

#: Nothing listens there.
AWAY = "127.0.0.1:1"


def daemons(tcp: str, http: str) -> Nsqds:
    given = {"topic": "t", "channel": "c", "nsqd_tcp_addresses": tcp, "nsqd_http_addresses": http}
    return Nsqds(parse_options(SourceOptions, given))


def test_if_all_are_away_the_error_says_so_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unreachable, match=AWAY):
        daemons(AWAY, AWAY).prepare()
    assert caplog.messages == []


def test_one_that_is_away_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with running_nsqd() as nsqd:
        some = daemons(f"{nsqd.tcp_address},{AWAY}", f"{nsqd.http_address},{AWAY}")
        some.prepare()
        assert list(some.depths()) == [Queue(TopicChannel("t", "c"), nsqd.tcp_address)]
    [message] = caplog.messages
    assert AWAY in message and message.endswith("; this daemon is left out until it answers")


def test_an_nsqd_that_is_busy_does_not_end_a_query_that_begins() -> None:
    """To create a topic, nsqd waits for its disk: on a busy machine, longer than a batch would."""
    with running_nsqd("process") as nsqd:
        assert isinstance(nsqd, Process) and nsqd.process is not None
        some = daemons(nsqd.tcp_address, nsqd.http_address)
        with stopped(nsqd.process.pid):
            preparing = gevent.spawn(some.prepare)
            preparing.join(1.5 * _HTTP_TIMEOUT)
            assert not preparing.dead
        preparing.get()
        assert list(some.depths()) == [Queue(TopicChannel("t", "c"), nsqd.tcp_address)]


def test_an_nsqd_that_is_busy_is_not_left_out_by_a_run_that_ends_with_what_it_finds() -> None:
    with running_nsqd("process") as nsqd:
        assert isinstance(nsqd, Process) and nsqd.process is not None
        some = daemons(nsqd.tcp_address, nsqd.http_address)
        some.prepare()
        with stopped(nsqd.process.pid):
            counting = gevent.spawn(some.patient_depths)
            counting.join(3.5 * _HTTP_TIMEOUT)
            assert not counting.dead
        assert list(counting.get()) == [Queue(TopicChannel("t", "c"), nsqd.tcp_address)]


def test_who_was_away_is_known() -> None:
    with running_nsqd() as nsqd:
        some = daemons(f"{nsqd.tcp_address},{AWAY}", f"{nsqd.http_address},{AWAY}")
        assert some.last_depths == {}
        some.prepare()
        some.depths()
        NsqdHTTPClient(nsqd.http_address).publish("t", b"x")
        some.depths()
    assert some.last_depths == {Queue(TopicChannel("t", "c"), nsqd.tcp_address): Depth(1, mean_bytes=1.0)}
    assert some.away == {AWAY}


def test_what_may_be_a_mistake_is_said() -> None:
    with running_nsqd() as nsqd:
        some = daemons(nsqd.tcp_address, nsqd.http_address)
        assert some.doubts() == ["no nsqd has the topic t: is its name right?"]
        some.prepare()
        assert some.doubts() == []
        reader = Connection(nsqd.tcp_address, ConnectionOptions(hostname="other-host"))
        try:
            reader.connect()
            reader.subscribe("t", "c")
            assert some.doubts() == [
                "the channel t/c has consumers already, which keep their share of its messages: other-host"
            ]
        finally:
            reader.close()


def test_a_topic_that_nsqlookupd_does_not_know_is_said(caplog: pytest.LogCaptureFixture) -> None:
    given = {"topics": "t", "channel": "c"}
    with running_nsqlookupd() as lookupd:
        some = Nsqds(parse_options(SourceOptions, {**given, "lookupd_http_addresses": lookupd.http_address}))
        assert some.doubts() == ["no nsqd has the topic t: is its name right?"]
    # Of those who do not answer, prepare() speaks.
    away = Nsqds(parse_options(SourceOptions, {**given, "lookupd_http_addresses": AWAY}))
    assert (away.doubts(), caplog.messages) == ([], [])


@pytest.mark.parametrize("topics", [{"topic": "t"}, {"topics": "t,u"}, {"topics_pattern": "t.*"}])
def test_an_nsqlookupd_that_answers_is_enough_to_begin(
    caplog: pytest.LogCaptureFixture, topics: dict[str, str]
) -> None:
    with running_nsqlookupd() as lookupd:
        # It says that it is where nothing listens.
        options: dict[str, Any] = {"lookupd_tcp_addresses": [lookupd.tcp_address], "broadcast_address": "127.0.0.2"}
        with running_nsqd(**options) as nsqd:
            NsqdHTTPClient(nsqd.http_address).create_topic("t")
            lookup = LookupdClient(lookupd.http_address)
            wait_for(lambda: lookup.lookup("t", missing_ok=True).producers, "nsqd is known")
            given = {"channel": "c", "lookupd_http_addresses": lookupd.http_address, **topics}
            Nsqds(parse_options(SourceOptions, given)).prepare()
    [message] = caplog.messages
    assert "127.0.0.2" in message and "left out" in message
