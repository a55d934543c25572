"""The connection of a batch read: which messages it takes and which it leaves. In this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import gevent
import pytest

from gnsq_like.errors import ConnectionFailed
from gnsq_like.http.nsqd import ChannelStats
from tests.support.daemons import KINDS, Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.peer import CLOSE_WAIT, OK, PATIENCE, ScriptedNsqd, scripted_nsqd
from tests.support.spark_engine import PATIENT, read_options

pytest.importorskip("pyarrow")

from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.batch import peek
from gnsq_like.spark.staging.records import RawMessage
from gnsq_like.wire.frames import encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator

ID = b"0123456789abcdef"
OTHER_ID = b"fedcba9876543210"


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


def options_of(address: str, topic: str, **options: object) -> SourceOptions:
    given = {"nsqd_tcp_addresses": address, "nsqd_http_addresses": address, "topic": topic, "channel": "c", **options}
    return read_options({"segment_messages": 1250, **given})


#: Nsqd may pause for less.
PAUSE = {"msg_timeout": "250s"}


def receiver(address: str, options: SourceOptions, wanted: int) -> partial[list[RawMessage]]:
    return partial(peek, address, options.named[0], options, wanted)


def fill(nsqd: Running, topic: str, count: int) -> NsqdHTTPClient:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, "c")
    if count:
        client.multi_publish(topic, [b"%d" % number for number in range(count)])
    wait_for(lambda: channel(client, topic)["depth"] == count, "all in the channel")
    return client


def channel(client: NsqdHTTPClient, topic: str) -> ChannelStats:
    found = client.stats(topic)["topics"][0]["channels"][0]
    return found


def left(client: NsqdHTTPClient, topic: str) -> list[int]:
    """Depth, in flight and deferred, once the client is gone."""
    wait_for(lambda: not channel(client, topic)["client_count"], "the connection is gone")
    return [channel(client, topic)[name] for name in ("depth", "in_flight_count", "deferred_count")]


def test_looked_at_and_given_back(nsqd: Running) -> None:
    client = fill(nsqd, "looked-at", 100)
    for attempts in (1, 2):
        options = options_of(nsqd.tcp_address, "looked-at", **PAUSE)
        messages = receiver(nsqd.tcp_address, options, 100)()
        assert sorted(int(message[3]) for message in messages) == list(range(100))
        assert {message[1] for message in messages} == {attempts}
        assert left(client, "looked-at") == [100, 0, 0]


def test_bytes_are_enough(nsqd: Running) -> None:
    client = fill(nsqd, "bytes", 0)
    client.multi_publish("bytes", [b"x" * 100_000] * 40)
    options = options_of(nsqd.tcp_address, "bytes", segment_bytes=300_000, **PAUSE)
    messages = receiver(nsqd.tcp_address, options, 40)()
    assert 3 <= len(messages) <= 40
    assert left(client, "bytes") == [40, 0, 0]


def test_nothing_there(nsqd: Running) -> None:
    client = fill(nsqd, "empty", 0)
    options = options_of(nsqd.tcp_address, "empty", msg_timeout="1s")
    assert receiver(nsqd.tcp_address, options, 10)() == []
    assert left(client, "empty") == [0, 0, 0]


def test_an_nsqd_that_is_away() -> None:
    with running_nsqd("ours") as nsqd:
        nsqd.stop()
        with pytest.raises(ConnectionFailed, match=nsqd.tcp_address):
            receiver(nsqd.tcp_address, options_of(nsqd.tcp_address, "t"), 10)()


def test_a_connection_that_is_lost_under_way() -> None:
    """What came is shown; nsqd delivers it again."""

    def script(nsqd: ScriptedNsqd) -> None:
        peer = nsqd.accept()
        peer.identify(version="1.3.0", max_rdy_count=2500)
        assert peer.line() == b"SUB t c"
        peer.send(OK)
        assert peer.line() == b"RDY 10"
        peer.send(encode_message(1, 1, ID, b"a"))
        peer.close()

    with scripted_nsqd() as nsqd:
        scripted = gevent.spawn(script, nsqd)
        receiving = receiver(nsqd.address, options_of(nsqd.address, "t", **PATIENT), 10)
        assert [message[3] for message in receiving()] == [b"a"]
        scripted.get(timeout=PATIENCE)


def test_what_comes_too_late_is_given_back() -> None:
    """nsqd may have sent a message before it reads RDY 0."""

    def script(nsqd: ScriptedNsqd) -> None:
        peer = nsqd.accept()
        peer.identify(version="1.3.0", max_rdy_count=2500)
        assert peer.line() == b"SUB t c"
        peer.send(OK)
        assert peer.line() == b"RDY 1"
        peer.send(encode_message(1, 1, ID, b"a"))
        assert peer.line() == b"RDY 0"
        assert peer.line() == b"REQ " + ID + b" 0"
        assert peer.line() == b"CLS"
        peer.send(encode_message(1, 1, OTHER_ID, b"b"))
        peer.send(CLOSE_WAIT)
        assert peer.line() == b"REQ " + OTHER_ID + b" 0"

    with scripted_nsqd() as nsqd:
        scripted = gevent.spawn(script, nsqd)
        messages = receiver(nsqd.address, options_of(nsqd.address, "t"), 1)()
        scripted.get(timeout=PATIENCE)
    assert [message[3] for message in messages] == [b"a"]
