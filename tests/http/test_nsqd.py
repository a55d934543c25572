"""nsqd's HTTP API, each method by its effect, against ours and the real one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from gevent import socket

from gnsq_like.errors import HTTPRequestFailed, HTTPStatusError, InvalidBody, InvalidName, InvalidOption
from gnsq_like.http.nsqd import ChannelStats, TopicStats
from gnsq_like.wire import commands
from gnsq_like.wire.frames import OK, Frame, FrameDecoder
from tests.support.daemons import KINDS, Kind, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.scripted_http import always, response, scripted

#: For what ours does not have: /config comes with the whole of its HTTP API, Go's profiler never.
only_real = pytest.mark.parametrize("kind", [KINDS[-1]], indirect=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def nsqd(kind: Kind) -> Iterator[Any]:
    with running_nsqd(kind) as running:
        yield running


@pytest.fixture
def client(nsqd: Any) -> Iterator[NsqdHTTPClient]:
    with NsqdHTTPClient(nsqd.http_address) as client:
        yield client


def consume(tcp_address: str, topic: str, channel: str, count: int) -> list[bytes]:
    """The bodies of the first ``count`` messages, in their order, finished."""
    host, _, port = tcp_address.rpartition(":")
    decoder = FrameDecoder()
    bodies: list[bytes] = []
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(commands.MAGIC_V2 + commands.sub(topic, channel) + commands.rdy(count))
        while len(bodies) < count:
            data = sock.recv(65536)
            assert data, "nsqd closed the connection"
            for item in decoder.feed(data):
                if isinstance(item, Frame):
                    assert item.payload in (OK, b"_heartbeat_"), item
                    continue
                bodies += [body for _, _, _, body in item]
                sock.sendall(commands.fin_many([message_id for _, _, message_id, _ in item]))
    return bodies


def topic_stats(client: NsqdHTTPClient, topic: str) -> TopicStats:
    (found,) = client.stats(topic)["topics"]
    return found


def channel_stats(client: NsqdHTTPClient, topic: str, channel: str) -> ChannelStats:
    (found,) = topic_stats(client, topic)["channels"]
    assert found["channel_name"] == channel
    return found


def refused(*, status: int, message: str) -> Any:
    return pytest.raises(HTTPStatusError, match=rf"HTTP {status} {message}($|; is this)")


# --- information ---


def test_ping(client: NsqdHTTPClient) -> None:
    assert client.ping() == "OK"


def test_info(nsqd: Any, client: NsqdHTTPClient) -> None:
    info = client.info()
    assert info.version[0].isdigit()
    assert info.broadcast_address == "127.0.0.1"
    assert f"127.0.0.1:{info.tcp_port}" == nsqd.tcp_address
    assert f"127.0.0.1:{info.http_port}" == nsqd.http_address
    assert info.hostname
    assert info.start_time is not None
    assert abs(info.start_time - time.time()) < 60
    assert info.max_heartbeat_interval == 60.0
    assert info.max_output_buffer_timeout == 30.0
    assert info.max_output_buffer_size == 65536
    assert info.max_deflate_level == 6
    assert info.raw["max_heartbeat_interval"] == 60_000_000_000
    assert "raw" not in repr(info)


def test_stats(client: NsqdHTTPClient) -> None:
    assert client.stats()["topics"] == []
    client.create_topic("a")
    client.create_channel("a", "x")
    client.create_channel("a", "y")
    client.create_topic("b")
    stats = client.stats()
    assert stats["health"] == "OK"
    assert [topic["topic_name"] for topic in stats["topics"]] == ["a", "b"]
    assert [channel["channel_name"] for channel in stats["topics"][0]["channels"]] == ["x", "y"]
    assert [topic["topic_name"] for topic in client.stats("b")["topics"]] == ["b"]
    assert client.stats("nothing")["topics"] == []
    assert [channel["channel_name"] for channel in client.stats("a", "y")["topics"][0]["channels"]] == ["y"]
    assert [topic["topic_name"] for topic in client.stats(channel="x")["topics"]] == ["a"]


def test_stats_with_and_without_memory_and_clients(nsqd: Any, client: NsqdHTTPClient) -> None:
    assert ("memory" in client.stats()) == (nsqd.daemon is None)  # ours has none
    assert "memory" not in client.stats(include_mem=False)
    client.create_topic("t")
    client.create_channel("t", "c")
    host, _, port = nsqd.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(commands.MAGIC_V2 + commands.sub("t", "c"))
        wait_for(lambda: channel_stats(client, "t", "c")["client_count"] == 1)
        assert len(channel_stats(client, "t", "c")["clients"] or ()) == 1
        (topic,) = client.stats("t", include_clients=False)["topics"]
        assert not topic["channels"][0]["clients"]
        assert topic["channels"][0]["client_count"] == 1


def test_stats_as_text(client: NsqdHTTPClient) -> None:
    client.create_topic("clicks")
    client.create_topic("views")
    text = client.stats_text()
    assert text.startswith("nsqd v")
    assert "Health: OK" in text
    assert "clicks" in text
    text = client.stats_text("views", include_mem=False)
    assert "clicks" not in text
    assert "views" in text
    assert "Memory:" not in text


# --- publishing ---


def test_publish(nsqd: Any, client: NsqdHTTPClient) -> None:
    bodies = [b"one", b"two\nlines", b"\x00\xff\r\n", bytes(100_000)]
    for body in bodies:
        client.publish("t", body)
    client.publish("t", bytearray(b"array"))  # type: ignore[arg-type]
    assert topic_stats(client, "t")["depth"] == 5
    assert sorted(consume(nsqd.tcp_address, "t", "c", 5)) == sorted([*bodies, b"array"])


def test_publish_deferred(nsqd: Any, client: NsqdHTTPClient) -> None:
    for topic in ("t", "soon"):
        client.create_topic(topic)
        client.create_channel(topic, "c")
    client.publish("t", b"later", defer=3600)
    client.publish("t", b"now", defer=0)
    wait_for(lambda: channel_stats(client, "t", "c")["depth"] == 1)
    assert channel_stats(client, "t", "c")["deferred_count"] == 1
    start = time.monotonic()
    client.publish("soon", b"soon", defer=0.5)
    assert consume(nsqd.tcp_address, "soon", "c", 1) == [b"soon"]
    assert time.monotonic() - start >= 0.5


def test_publish_what_cannot_be(client: NsqdHTTPClient) -> None:
    for body in (b"", "text", None, 5):
        with pytest.raises(InvalidBody):
            client.publish("t", body)  # type: ignore[arg-type]
    for topic in ("", "a b", "x" * 65, "t\n", None):
        with pytest.raises(InvalidName):
            client.publish(topic, b"body")  # type: ignore[arg-type]
    for defer in (-1, float("nan"), "1", True):
        with pytest.raises(InvalidOption):
            client.publish("t", b"body", defer=defer)  # type: ignore[arg-type]
    assert client.stats()["topics"] == []
    with refused(status=400, message="INVALID_DEFER"):
        client.publish("t", b"body", defer=3601)


def test_publish_what_is_too_big(client: NsqdHTTPClient) -> None:
    client.publish("t", bytes(1024 * 1024))
    with refused(status=413, message="MSG_TOO_BIG"):
        client.publish("t", bytes(1024 * 1024 + 1))
    assert topic_stats(client, "t")["message_count"] == 1


def test_multi_publish(nsqd: Any, client: NsqdHTTPClient) -> None:
    bodies = [b"one", b"two\nlines", b"\x00\xff", b"x" * 100_000]
    client.multi_publish("t", bodies)
    client.multi_publish("t", (body for body in [b"made", b"on the way"]))
    assert topic_stats(client, "t")["message_count"] == 6
    assert sorted(consume(nsqd.tcp_address, "t", "c", 6)) == sorted([*bodies, b"made", b"on the way"])


def test_multi_publish_what_cannot_be(client: NsqdHTTPClient) -> None:
    for bodies in ([], [b"a", b""], [b"a", "b"]):
        with pytest.raises(InvalidBody):
            client.multi_publish("t", bodies)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        client.multi_publish("a b", [b"a"])
    assert client.stats()["topics"] == []
    with refused(status=413, message="BAD_MESSAGE"):
        client.multi_publish("t", [b"small", bytes(1024 * 1024 + 1)])
    with refused(status=413, message="BODY_TOO_BIG"):
        client.multi_publish("t", [bytes(1024 * 1024)] * 6)
    assert client.stats("t")["topics"] in ([], [topic_stats(client, "t")])
    assert topic_stats(client, "t")["message_count"] == 0


# --- topics and channels ---


def test_create_and_delete_a_topic(client: NsqdHTTPClient) -> None:
    client.create_topic("t")
    client.create_topic("t")
    client.create_topic("t#ephemeral")
    assert [topic["topic_name"] for topic in client.stats()["topics"]] == ["t", "t#ephemeral"]
    client.delete_topic("t#ephemeral")
    assert [topic["topic_name"] for topic in client.stats()["topics"]] == ["t"]
    client.delete_topic("t")
    with refused(status=404, message="TOPIC_NOT_FOUND"):
        client.delete_topic("t")
    assert client.stats()["topics"] == []


def test_empty_a_topic(client: NsqdHTTPClient) -> None:
    client.multi_publish("t", [b"a", b"b"])
    assert topic_stats(client, "t")["depth"] == 2
    client.empty_topic("t")
    assert topic_stats(client, "t")["depth"] == 0
    with refused(status=404, message="TOPIC_NOT_FOUND"):
        client.empty_topic("nothing")


def test_pause_and_unpause_a_topic(client: NsqdHTTPClient) -> None:
    client.create_topic("t")
    client.create_channel("t", "c")
    client.pause_topic("t")
    assert topic_stats(client, "t")["paused"] is True
    client.publish("t", b"held")
    assert topic_stats(client, "t")["depth"] == 1
    client.unpause_topic("t")
    assert topic_stats(client, "t")["paused"] is False
    wait_for(lambda: channel_stats(client, "t", "c")["depth"] == 1)
    for change in (client.pause_topic, client.unpause_topic):
        with refused(status=404, message="TOPIC_NOT_FOUND"):
            change("nothing")


def test_create_and_delete_a_channel(client: NsqdHTTPClient) -> None:
    with refused(status=404, message="TOPIC_NOT_FOUND"):
        client.create_channel("t", "c")
    client.create_topic("t")
    client.create_channel("t", "c")
    client.create_channel("t", "c")
    assert [channel["channel_name"] for channel in topic_stats(client, "t")["channels"]] == ["c"]
    client.delete_channel("t", "c")
    assert topic_stats(client, "t")["channels"] == []
    with refused(status=404, message="CHANNEL_NOT_FOUND"):
        client.delete_channel("t", "c")


def test_empty_a_channel(client: NsqdHTTPClient) -> None:
    client.create_topic("t")
    client.create_channel("t", "c")
    client.multi_publish("t", [b"a", b"b"])
    wait_for(lambda: channel_stats(client, "t", "c")["depth"] == 2)
    client.empty_channel("t", "c")
    assert channel_stats(client, "t", "c")["depth"] == 0
    with refused(status=404, message="CHANNEL_NOT_FOUND"):
        client.empty_channel("t", "nothing")


def test_pause_and_unpause_a_channel(client: NsqdHTTPClient) -> None:
    client.create_topic("t")
    client.create_channel("t", "c")
    client.pause_channel("t", "c")
    assert channel_stats(client, "t", "c")["paused"] is True
    client.unpause_channel("t", "c")
    assert channel_stats(client, "t", "c")["paused"] is False
    for change in (client.pause_channel, client.unpause_channel):
        with refused(status=404, message="CHANNEL_NOT_FOUND"):
            change("t", "nothing")


@pytest.mark.parametrize("name", ["", "a b", "t?x=y", "t&x", "x" * 65, "#ephemeral", "t\n", "ü", None, 5, b"t"])
def test_names_are_checked_before_anything_is_sent(name: Any) -> None:
    client = NsqdHTTPClient("127.0.0.1:1")  # nobody listens there: what is sent fails otherwise
    for of_topic in (
        client.create_topic,
        client.delete_topic,
        client.empty_topic,
        client.pause_topic,
        client.unpause_topic,
    ):
        with pytest.raises(InvalidName):
            of_topic(name)
    for of_channel in (
        client.create_channel,
        client.delete_channel,
        client.empty_channel,
        client.pause_channel,
        client.unpause_channel,
    ):
        with pytest.raises(InvalidName):
            of_channel("t", name)
        with pytest.raises(InvalidName):
            of_channel(name, "c")
    if name is not None:
        with pytest.raises(InvalidName):
            client.stats(name)
        with pytest.raises(InvalidName):
            client.stats_text(channel=name)


# --- configuration ---


@only_real
def test_config_get(client: NsqdHTTPClient) -> None:
    assert client.config_get("max_msg_size") == 1024 * 1024
    assert client.config_get("msg_timeout") == 60_000_000_000
    assert client.config_get("snappy") is True
    assert client.config_get("nsqlookupd_tcp_addresses") == []
    assert client.config_get("broadcast_address") == "127.0.0.1"
    with refused(status=400, message="INVALID_OPTION"):
        client.config_get("nothing")


@pytest.mark.parametrize("option", ["", "../info", "a/b", "a?b", "log-level", None])
def test_config_takes_names_only(option: Any) -> None:
    client = NsqdHTTPClient("127.0.0.1:1")
    with pytest.raises(InvalidOption):
        client.config_get(option)
    with pytest.raises(InvalidOption):
        client.config_set(option, "x")


@only_real
def test_config_set(client: NsqdHTTPClient) -> None:
    assert client.config_set("log_level", "debug") == 1
    assert client.config_get("log_level") == 1
    assert client.config_set("log_level", "warn") == 3
    with refused(status=400, message="INVALID_VALUE"):
        client.config_set("log_level", "loud")
    with refused(status=400, message="INVALID_OPTION"):
        client.config_set("max_msg_size", "5")


@only_real
def test_config_set_changes_the_nsqlookupds(kind: Kind, nsqd: Any, client: NsqdHTTPClient) -> None:
    client.create_topic("t")
    with running_nsqlookupd(kind) as lookupd, LookupdClient(lookupd.http_address) as lookup:
        assert lookup.topics() == []
        addresses = [lookupd.tcp_address]
        assert client.config_set("nsqlookupd_tcp_addresses", addresses) == addresses
        assert client.config_get("nsqlookupd_tcp_addresses") == addresses
        wait_for(lambda: lookup.topics() == ["t"])
        assert client.config_set("nsqlookupd_tcp_addresses", ()) == []


# --- answers of other versions ---


def test_info_of_an_old_nsqd() -> None:
    answer = response('{"version":"0.2.31"}')
    with scripted(always(answer)) as server, NsqdHTTPClient(server.address) as client:
        info = client.info()
    assert (info.version, info.tcp_port, info.max_heartbeat_interval) == ("0.2.31", None, None)


@pytest.mark.parametrize("body", ['{"version": 1}', '{"version": "1.3.0", "tcp_port": "4150"}', "{}"])
def test_info_that_is_malformed(body: str) -> None:
    with (
        scripted(always(response(body))) as server,
        NsqdHTTPClient(server.address) as client,
        pytest.raises(HTTPRequestFailed, match="the answer is malformed"),
    ):
        client.info()


@pytest.mark.parametrize("body", ["{}", '{"topics": {}}', '{"topics": ["t"]}'])
def test_stats_that_are_malformed(body: str) -> None:
    with (
        scripted(always(response(body))) as server,
        NsqdHTTPClient(server.address) as client,
        pytest.raises(HTTPRequestFailed, match='"topics" is not a list of dict'),
    ):
        client.stats()


def test_config_that_is_malformed() -> None:
    answer = response("{", "200 OK", "Content-Type: application/json")
    with (
        scripted(always(answer)) as server,
        NsqdHTTPClient(server.address) as client,
        pytest.raises(HTTPRequestFailed, match="it is not JSON"),
    ):
        client.config_get("max_msg_size")
