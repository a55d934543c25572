"""nsqlookupd: docs/internals 4, and the statements of docs/internals 8 about it by their numbers."""

import json
from typing import Any

import pytest

from tests.support.daemons import Kind, Running, has_topology, running_nsqd, running_nsqlookupd, wait_for
from tests.support.raw import Client, channel_stats, get, http, post, sized, topic_stats

INTRODUCTION = {
    "broadcast_address": "10.0.0.1",
    "hostname": "hh",
    "http_port": 2,
    "tcp_port": 1,
    "version": "1.0.0",
}


class Producer(Client):
    """A client that pretends to be an nsqd."""

    def __init__(self, lookupd: Running, **facts: object) -> None:
        super().__init__(lookupd.tcp_address, magic=b"  V1")
        self.send(b"IDENTIFY\n", sized(json.dumps(INTRODUCTION | facts).encode()))
        self.identity = json.loads(self.answer())

    @property
    def remote_address(self) -> str:
        host, port = self.sock.getsockname()
        return f"{host}:{port}"

    def ask(self, line: bytes) -> bytes:
        self.send(line)
        return self.answer()

    def ok(self, line: bytes) -> None:
        assert self.ask(line) == b"OK"


def topology(kind: Kind, zone: str = "", region: str = "") -> dict[str, str]:
    return {"topology_zone": zone, "topology_region": region} if has_topology(kind) else {}


def lookup(lookupd: Running, topic: str) -> Any:
    return get(lookupd.http_address, f"/lookup?topic={topic}").json()


def nodes(lookupd: Running) -> Any:
    return get(lookupd.http_address, "/nodes").json()["producers"]


def topics(lookupd: Running) -> list[str]:
    return sorted(get(lookupd.http_address, "/topics").json()["topics"])


def channels(lookupd: Running, topic: str) -> list[str]:
    return sorted(get(lookupd.http_address, f"/channels?topic={topic.replace('#', '%23')}").json()["channels"])


def test_43_answers_have_no_frame_type(lookupd: Running) -> None:
    with Client(lookupd.tcp_address, magic=b"  V1") as client:
        client.send(b"PING\n")
        assert client._bytes(6) == b"\0\0\0\x02OK"


def test_identify_answers_with_the_lookupd_itself(lookupd: Running) -> None:
    with Producer(lookupd) as producer:
        assert list(producer.identity) == ["broadcast_address", "hostname", "http_port", "tcp_port", "version"]
        assert lookupd.tcp_address == f"127.0.0.1:{producer.identity['tcp_port']}"
        assert lookupd.http_address == f"127.0.0.1:{producer.identity['http_port']}"
        assert producer.identity["version"] == "1.3.0"


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"HELLO x\n", b"E_INVALID invalid command HELLO"),
        (b"\n", b"E_INVALID invalid command "),
        (b"REGISTER t c\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER\n", b"E_INVALID client must IDENTIFY"),
        (b"IDENTIFY\n" + sized(b"[]"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n" + sized(b'{"tcp_port":"1"}'), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n" + sized(b"{}"), b"E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n" + sized(b'{"tcp_port":1,"http_port":2,"version":"1"}'), b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_a_command_before_identify_that_is_refused(lookupd: Running, sent: bytes, error: bytes) -> None:
    with Client(lookupd.tcp_address, magic=b"  V1") as client:
        client.send(sent)
        assert client.answer() == error
        client.expect_end()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"IDENTIFY\n" + sized(b"{}"), b"E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER t!\n", b"E_BAD_TOPIC REGISTER topic name 't!' is not valid"),
        (b"UNREGISTER t c!\n", b"E_BAD_CHANNEL UNREGISTER channel name 'c!' is not valid"),
    ],
)
def test_a_command_after_identify_that_is_refused(lookupd: Running, sent: bytes, error: bytes) -> None:
    with Producer(lookupd) as producer:
        assert producer.ask(sent) == error
        producer.expect_end()


def test_a_wrong_magic_is_refused(lookupd: Running) -> None:
    with Client(lookupd.tcp_address, magic=b"  V2") as client:
        assert client._bytes(18)[-14:] == b"E_BAD_PROTOCOL"
        client.expect_end()


def test_white_space_around_a_line_is_nothing(lookupd: Running) -> None:
    with Producer(lookupd) as producer:
        producer.ok(b"  PING \r\n")
        producer.ok(b"\tREGISTER t c \r\n")
    assert channels(lookupd, "t") == ["c"]


def test_42_lookup_of_an_unknown_topic_is_404_and_of_one_without_producers_empty(lookupd: Running) -> None:
    answer = get(lookupd.http_address, "/lookup?topic=t")
    assert (answer.status, answer.body) == (404, b'{"message":"TOPIC_NOT_FOUND"}')
    post(lookupd.http_address, "/topic/create?topic=t")
    assert lookup(lookupd, "t") == {"channels": [], "producers": []}


def test_lookup_and_nodes_show_a_registered_producer(kind: Kind, lookupd: Running) -> None:
    with Producer(lookupd) as producer:
        producer.ok(b"REGISTER t c\n")
        producer.ok(b"REGISTER u\n")
        shown = {"remote_address": producer.remote_address, **INTRODUCTION, **topology(kind)}
        assert lookup(lookupd, "t") == {"channels": ["c"], "producers": [shown]}
        assert lookup(lookupd, "u") == {"channels": [], "producers": [shown]}
        (node,) = nodes(lookupd)
        assert (sorted(node.pop("topics")), node.pop("tombstones")) == (["t", "u"], [False, False])
        assert node == shown


def test_43_every_connection_of_an_nsqd_is_a_producer(lookupd: Running) -> None:
    with Producer(lookupd) as one, Producer(lookupd) as two:
        one.ok(b"REGISTER t\n")
        two.ok(b"REGISTER t\n")
        assert len(lookup(lookupd, "t")["producers"]) == 2
        assert len(nodes(lookupd)) == 2


def test_44_names_stay_when_producers_leave(kind: Kind, lookupd: Running) -> None:
    with Producer(lookupd) as producer, Producer(lookupd) as other:
        for line in (b"t c", b"t c#ephemeral", b"t d#ephemeral", b"e#ephemeral c", b"f#ephemeral c"):
            producer.ok(b"REGISTER %b\n" % line)
        other.ok(b"REGISTER t d#ephemeral\n")
        other.ok(b"REGISTER f#ephemeral c\n")
        post(lookupd.http_address, "/topic/create?topic=g%23ephemeral")
        producer.sock.close()
        wait_for(lambda: len(nodes(lookupd)) == 1)
        if kind == "ours":  # ephemeral names go with the last nsqd that had them
            assert topics(lookupd) == ["f#ephemeral", "g#ephemeral", "t"]
            assert (channels(lookupd, "t"), channels(lookupd, "e#ephemeral")) == (["c", "d#ephemeral"], [])
        else:
            assert topics(lookupd) == ["e#ephemeral", "f#ephemeral", "g#ephemeral", "t"]
            assert channels(lookupd, "t") == ["c", "c#ephemeral", "d#ephemeral"]
        assert channels(lookupd, "f#ephemeral") == ["c"]


def test_44_unregister_removes_ephemeral_names_only(lookupd: Running) -> None:
    with Producer(lookupd) as producer, Producer(lookupd) as other:
        for line in (b"t c", b"t d", b"t c#ephemeral", b"e#ephemeral c#ephemeral"):
            producer.ok(b"REGISTER " + line + b"\n")
        other.ok(b"REGISTER t c#ephemeral\n")
        producer.ok(b"UNREGISTER t c\n")
        producer.ok(b"UNREGISTER t c#ephemeral\n")
        assert channels(lookupd, "t") == ["c", "c#ephemeral", "d"]
        other.ok(b"UNREGISTER t c#ephemeral\n")
        assert channels(lookupd, "t") == ["c", "d"]
        assert len(lookup(lookupd, "t")["producers"]) == 2
        producer.ok(b"UNREGISTER t\n")
        assert len(lookup(lookupd, "t")["producers"]) == 1
        producer.ok(b"UNREGISTER e#ephemeral\n")
        assert topics(lookupd) == ["t"]
        # UNREGISTER of a topic keeps the channels' names, even ephemeral ones; nsqd unregisters each channel too.
        assert channels(lookupd, "e#ephemeral") == ["c#ephemeral"]
        producer.ok(b"UNREGISTER e#ephemeral c#ephemeral\n")
        assert channels(lookupd, "e#ephemeral") == []
        producer.ok(b"UNREGISTER nobody knows\n")


def test_44_http_delete_removes_names_with_their_producers(lookupd: Running) -> None:
    with Producer(lookupd) as producer:
        producer.ok(b"REGISTER t c\n")
        assert post(lookupd.http_address, "/channel/delete?topic=t&channel=c").status == 200
        assert channels(lookupd, "t") == []
        assert len(lookup(lookupd, "t")["producers"]) == 1
        producer.ok(b"REGISTER t c\n")
        assert post(lookupd.http_address, "/topic/delete?topic=t").status == 200
        assert (topics(lookupd), channels(lookupd, "t")) == ([], [])


def test_45_a_tombstone_hides_a_producer_from_lookup_but_not_from_nodes(kind: Kind) -> None:
    with running_nsqlookupd(kind, tombstone_lifetime=3) as lookupd, Producer(lookupd) as producer:
        producer.ok(b"REGISTER t c\n")
        assert post(lookupd.http_address, "/topic/tombstone?topic=t&node=10.0.0.1:2").status == 200
        assert lookup(lookupd, "t") == {"channels": ["c"], "producers": []}
        assert nodes(lookupd)[0]["tombstones"] == [True]
        producer.ok(b"REGISTER t c\n")
        assert lookup(lookupd, "t")["producers"] == []
        wait_for(lambda: len(lookup(lookupd, "t")["producers"]) == 1)
        assert nodes(lookupd)[0]["tombstones"] == [False]
        post(lookupd.http_address, "/topic/tombstone?topic=t&node=10.0.0.1:2")
        producer.ok(b"UNREGISTER t\n")
        producer.ok(b"REGISTER t\n")
        assert len(lookup(lookupd, "t")["producers"]) == 1


def test_an_inactive_producer_is_hidden_until_it_pings(kind: Kind) -> None:
    with running_nsqlookupd(kind, inactive_producer_timeout=2.0) as lookupd, Producer(lookupd) as producer:
        producer.ok(b"REGISTER t c\n")
        assert len(lookup(lookupd, "t")["producers"]) == 1
        wait_for(lambda: lookup(lookupd, "t")["producers"] == [])
        assert nodes(lookupd) == []
        producer.ok(b"PING\n")
        assert len(lookup(lookupd, "t")["producers"]) == 1
        assert len(nodes(lookupd)) == 1


@pytest.mark.parametrize(
    ("method", "target", "status", "text"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=t!", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?node=x", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create?topic=t!&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=c!", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/lookup", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/config/log_level", 404, "NOT_FOUND"),
    ],
)
def test_what_http_refuses(lookupd: Running, method: str, target: str, status: int, text: str) -> None:
    answer = http(lookupd.http_address, method, target)
    assert (answer.status, answer.json()) == (status, {"message": text})


@pytest.mark.parametrize("target", ["/topic/delete?topic=unknown", "/topic/tombstone?topic=unknown&node=x"])
def test_what_http_takes_although_there_is_nothing(lookupd: Running, target: str) -> None:
    answer = post(lookupd.http_address, target)
    assert (answer.status, answer.body) == (200, b"")


def test_http_information(lookupd: Running) -> None:
    assert get(lookupd.http_address, "/ping").body == b"OK"
    assert get(lookupd.http_address, "/info").body == b'{"version":"1.3.0"}'
    assert get(lookupd.http_address, "/topics").body == b'{"topics":[]}'
    assert get(lookupd.http_address, "/channels?topic=x").body == b'{"channels":[]}'
    assert get(lookupd.http_address, "/nodes").body == b'{"producers":[]}'
    post(lookupd.http_address, "/channel/create?topic=t&channel=c")
    assert (topics(lookupd), channels(lookupd, "t")) == (["t"], ["c"])


def test_debug_shows_the_keys_that_have_producers(kind: Kind, lookupd: Running) -> None:
    with Producer(lookupd) as producer:
        producer.ok(b"REGISTER t c\n")
        post(lookupd.http_address, "/topic/create?topic=empty")
        found = get(lookupd.http_address, "/debug").json()
        assert sorted(found) == ["channel:t:c", "client::", "topic:t:"]
        (shown,) = found["topic:t:"]
        assert shown["id"] == producer.remote_address
        assert (shown["tombstoned"], shown["hostname"]) == (False, "hh")
        assert sorted(shown) == sorted(
            ["id", "last_update", "tombstoned", "tombstoned_at", *INTRODUCTION, *topology(kind)],
        )


def test_43_an_nsqd_announces_what_comes_and_goes(kind: Kind, lookupd: Running) -> None:
    with running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd:
        wait_for(lambda: len(nodes(lookupd)) == 1)
        node = nodes(lookupd)[0]
        assert f"{node['broadcast_address']}:{node['tcp_port']}" == nsqd.tcp_address
        assert f"{node['broadcast_address']}:{node['http_port']}" == nsqd.http_address
        post(nsqd.http_address, "/topic/create?topic=t")
        post(nsqd.http_address, "/channel/create?topic=t&channel=c%23ephemeral")
        wait_for(lambda: channels(lookupd, "t") == ["c#ephemeral"])
        assert nodes(lookupd)[0]["topics"] == ["t"]
        post(nsqd.http_address, "/channel/delete?topic=t&channel=c%23ephemeral")
        wait_for(lambda: channels(lookupd, "t") == [])
        post(nsqd.http_address, "/topic/delete?topic=t")
        wait_for(lambda: lookup(lookupd, "t")["producers"] == [])
    wait_for(lambda: nodes(lookupd) == [])


def test_43_an_nsqd_registers_everything_again_after_a_reconnect(kind: Kind, lookupd: Running) -> None:
    with running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd:
        for name in ("t", "u"):
            post(nsqd.http_address, f"/topic/create?topic={name}")
        post(nsqd.http_address, "/channel/create?topic=t&channel=c")
        wait_for(lambda: channels(lookupd, "t") == ["c"])
        lookupd.kill()
        lookupd.start()
        # The real one notices at its next ping or command, and reconnects at the one after that.
        post(nsqd.http_address, "/topic/create?topic=v")
        post(nsqd.http_address, "/topic/create?topic=w")
        wait_for(lambda: topics(lookupd) == ["t", "u", "v", "w"])
        wait_for(lambda: channels(lookupd, "t") == ["c"])


def test_an_nsqd_of_ours_notices_a_new_lookupd_by_itself() -> None:
    with running_nsqlookupd("ours") as lookupd:
        lookupd.stop()
        with running_nsqd("ours", lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd:
            post(nsqd.http_address, "/topic/create?topic=t")
            lookupd.start()
            wait_for(lambda: topics(lookupd) == ["t"])
            lookupd.stop()
            lookupd.start()
            wait_for(lambda: topics(lookupd) == ["t"])


def test_a_new_topic_gets_the_channels_that_lookupd_knows_before_its_messages_move(
    kind: Kind, lookupd: Running
) -> None:
    for name in ("one", "two", "three%23ephemeral"):
        post(lookupd.http_address, f"/channel/create?topic=known&channel={name}")
    with running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd:
        wait_for(lambda: len(nodes(lookupd)) == 1)
        assert post(nsqd.http_address, "/pub?topic=known", b"first").body == b"OK"
        wait_for(lambda: topic_stats(nsqd.http_address, "known")["depth"] == 0)
        for name in ("one", "two"):
            assert channel_stats(nsqd.http_address, "known", name)["depth"] == 1
        assert len(topic_stats(nsqd.http_address, "known")["channels"]) == 2


def test_a_lookupd_that_does_not_answer_holds_no_message_for_long() -> None:
    with running_nsqlookupd("ours") as lookupd:
        options: dict[str, Any] = {"lookupd_tcp_addresses": [lookupd.tcp_address], "http_client_request_timeout": 0.2}
        with running_nsqd("ours", **options) as nsqd, Client(nsqd.tcp_address) as client:
            wait_for(lambda: len(nodes(lookupd)) == 1)
            lookupd.kill()
            client.subscribe("t", rdy=1)
            client.publish("t", b"a")
            assert client.message().body == b"a"
