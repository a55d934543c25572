"""nsqd's HTTP API: docs/internals 3, and the statements of docs/internals 8 about it by their numbers."""

import json
import re
import struct
import time

import pytest

from tests.support.daemons import Kind, Running, has_topology, running_nsqd, wait_for
from tests.support.raw import Client, channel_stats, connect, get, http, post, sized, stats, topic_stats


def problem(text: str) -> bytes:
    return json.dumps({"message": text}, separators=(",", ":")).encode()


def bodies(nsqd: Running, topic: str, count: int) -> list[bytes]:
    """Consume ``count`` messages."""
    with Client(nsqd.tcp_address) as client:
        client.subscribe(topic, rdy=count)
        return [client.message().body for _ in range(count)]


def test_answers_on_a_connection_that_is_kept_are_not_held_back_by_the_kernel(nsqd: Running) -> None:
    taken = []
    with connect(nsqd.http_address) as sock:
        for _ in range(100):
            started = time.monotonic()
            sock.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\nOK"):
                answer += sock.recv(1000)
            taken.append(time.monotonic() - started)
    # Two writes without TCP_NODELAY are at least 40 ms apart, all of them after the connection's first ones.
    assert min(taken[50:]) < 0.035


def test_ping_and_info(kind: Kind, nsqd: Running) -> None:
    ping = get(nsqd.http_address, "/ping")
    assert (ping.status, ping.body) == (200, b"OK")
    assert "x-nsq-content-type" not in ping.headers
    info = get(nsqd.http_address, "/info")
    assert info.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert info.headers["content-type"] == "application/json; charset=utf-8"
    facts = info.json()
    assert list(facts) == [
        "version",
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "start_time",
        "max_heartbeat_interval",
        "max_output_buffer_size",
        "max_output_buffer_timeout",
        "max_deflate_level",
        *(["topology_zone", "topology_region"] if has_topology(kind) else []),
    ]
    assert facts["version"] == "1.3.0"
    assert f"{facts['broadcast_address']}:{facts['tcp_port']}" == nsqd.tcp_address
    assert f"{facts['broadcast_address']}:{facts['http_port']}" == nsqd.http_address
    assert (facts["max_heartbeat_interval"], facts["max_output_buffer_timeout"]) == (60_000_000_000, 30_000_000_000)


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/stats/", 301, "/stats"),
        ("GET", "//stats", 301, "/stats"),
        ("GET", "/STATS?topic=a&x=1", 301, "/stats?topic=a&x=1"),
        ("POST", "/pub/?topic=x", 307, "/pub?topic=x"),
        ("POST", "/Topic//Create?topic=x", 307, "/topic/create?topic=x"),
    ],
)
def test_47_a_path_not_quite_right_is_redirected(
    nsqd: Running, method: str, target: str, status: int, location: str
) -> None:
    answer = http(nsqd.http_address, method, target)
    assert (answer.status, answer.headers["location"]) == (status, location)


@pytest.mark.parametrize(
    ("method", "target", "status", "allow", "text"),
    [
        ("GET", "/nope", 404, None, "NOT_FOUND"),
        ("GET", "/", 404, None, "NOT_FOUND"),
        ("OPTIONS", "/nope", 404, None, "NOT_FOUND"),
        ("GET", "/pub?topic=%zz", 405, "OPTIONS, POST", "METHOD_NOT_ALLOWED"),
        ("PUT", "/pub", 405, "OPTIONS, POST", "METHOD_NOT_ALLOWED"),
        ("POST", "/ping", 405, "GET, OPTIONS", "METHOD_NOT_ALLOWED"),
        ("HEAD", "/ping", 405, "GET, OPTIONS", ""),
        ("OPTIONS", "/pub", 200, "OPTIONS, POST", ""),
    ],
)
def test_47_unknown_paths_and_wrong_methods(
    nsqd: Running, method: str, target: str, status: int, allow: str | None, text: str
) -> None:
    answer = http(nsqd.http_address, method, target)
    assert (answer.status, answer.headers.get("allow")) == (status, allow)
    assert answer.body == (problem(text) if text else b"")


@pytest.mark.parametrize(
    ("target", "body", "status", "text"),
    [
        ("/pub?topic=h21", b"", 400, "MSG_EMPTY"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=h!", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=h21;x", b"x", 400, "INVALID_REQUEST"),
        ("/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=h!", b"x", 400, "INVALID_TOPIC"),
    ],
)
def test_21_a_publish_that_is_refused_makes_no_topic(
    nsqd: Running, target: str, body: bytes, status: int, text: str
) -> None:
    answer = post(nsqd.http_address, target, body)
    assert (answer.status, answer.body) == (status, problem(text))
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert topic_stats(nsqd.http_address, "h21") is None


@pytest.mark.parametrize(
    ("path", "limit", "text"), [("pub", 1048576, "MSG_TOO_BIG"), ("mpub", 5242880, "BODY_TOO_BIG")]
)
def test_21_a_body_that_is_too_big_is_refused_before_it_came(nsqd: Running, path: str, limit: int, text: str) -> None:
    answer = http(nsqd.http_address, "POST", f"/{path}?topic=h21", Content_Length=str(limit + 1))
    assert (answer.status, answer.body) == (413, problem(text))
    assert post(nsqd.http_address, f"/{path}?topic=h21big", (b"x" * 1048575 + b"\n") * (limit // 1048576)).status == 200


@pytest.mark.parametrize("defer", ["x", "", "-1", "3600001", "1.5"])
def test_23_a_bad_defer_is_refused_and_makes_the_topic(nsqd: Running, defer: str) -> None:
    answer = post(nsqd.http_address, f"/pub?topic=h23&defer={defer}", b"x")
    assert (answer.status, answer.body) == (400, problem("INVALID_DEFER"))
    assert topic_stats(nsqd.http_address, "h23")["message_count"] == 0


def test_pub_takes_the_body_as_it_is(nsqd: Running) -> None:
    answer = post(nsqd.http_address, "/pub?topic=raw&topic=other&defer=0", b"a\nb\r\n\0")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert bodies(nsqd, "raw", 1) == [b"a\nb\r\n\0"]


def test_pub_defers(nsqd: Running) -> None:
    post(nsqd.http_address, "/channel/create?topic=hdefer&channel=c")
    post(nsqd.http_address, "/topic/create?topic=hdefer")
    post(nsqd.http_address, "/channel/create?topic=hdefer&channel=c")
    assert post(nsqd.http_address, "/pub?topic=hdefer&defer=60000", b"x").body == b"OK"
    wait_for(lambda: channel_stats(nsqd.http_address, "hdefer")["deferred_count"] == 1)


def test_21_mpub_of_lines_skips_empty_ones_and_keeps_cr(nsqd: Running) -> None:
    assert post(nsqd.http_address, "/mpub?topic=lines", b"a\n\nb\r\n\n c").body == b"OK"
    assert post(nsqd.http_address, "/mpub?topic=lines", b"\n\n").body == b"OK"
    assert post(nsqd.http_address, "/mpub?topic=lines&binary=false&defer=x").body == b"OK"
    assert bodies(nsqd, "lines", 3) == [b"a", b"b\r", b" c"]


def test_mpub_of_lines_queues_nothing_if_one_is_too_big(nsqd: Running) -> None:
    answer = post(nsqd.http_address, "/mpub?topic=toolong", b"a\n" + b"x" * 1048577)
    assert (answer.status, answer.body) == (413, problem("MSG_TOO_BIG"))
    assert topic_stats(nsqd.http_address, "toolong")["message_count"] == 0


@pytest.mark.parametrize("binary", ["true", "1", "", "yes"])
def test_mpub_binary(nsqd: Running, binary: str) -> None:
    body = struct.pack(">i", 2) + sized(b"a\n") + sized(b"b") + b"trailing"
    topic = f"binary{binary}"
    assert post(nsqd.http_address, f"/mpub?topic={topic}&binary={binary}", body).body == b"OK"
    assert bodies(nsqd, topic, 2) == [b"a\n", b"b"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (b"\0\0\0\0", "BAD_BODY"),
        (b"\xff\xff\xff\xff", "BAD_BODY"),
        (b"\0\0\0\1", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0\0", "BAD_MESSAGE"),
        (b"\0\0\0\2\0\0\0\1a\0\0\0\2b", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\x10\0\x01", "BAD_MESSAGE"),
    ],
)
def test_mpub_binary_refuses(nsqd: Running, body: bytes, text: str) -> None:
    answer = post(nsqd.http_address, "/mpub?topic=badbinary&binary=true", body)
    assert (answer.status, answer.body) == (413, problem(text))
    assert topic_stats(nsqd.http_address, "badbinary")["message_count"] == 0


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("/topic/create?topic=a!", 400, "INVALID_TOPIC"),
        ("/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("/topic/delete?topic=unknown", 404, "TOPIC_NOT_FOUND"),
        ("/topic/delete?topic=a!", 404, "TOPIC_NOT_FOUND"),
        ("/topic/empty", 400, "MISSING_ARG_TOPIC"),
        ("/topic/empty?topic=a!", 400, "INVALID_TOPIC"),
        ("/topic/empty?topic=unknown", 404, "TOPIC_NOT_FOUND"),
        ("/topic/pause", 400, "MISSING_ARG_TOPIC"),
        ("/topic/pause?topic=a!", 404, "TOPIC_NOT_FOUND"),
        ("/topic/unpause?topic=unknown", 404, "TOPIC_NOT_FOUND"),
        ("/channel/create?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("/channel/create?topic=a!&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("/channel/create?topic=known", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/create?topic=known&channel=c!", 400, "INVALID_ARG_CHANNEL"),
        ("/channel/create?topic=unknown&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("/channel/delete?topic=unknown&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("/channel/delete?topic=known&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/empty?topic=known", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/pause?topic=known&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/unpause?topic=known&channel=c", 404, "CHANNEL_NOT_FOUND"),
    ],
)
def test_48_what_the_topic_and_channel_endpoints_refuse(nsqd: Running, target: str, status: int, text: str) -> None:
    post(nsqd.http_address, "/topic/create?topic=known")
    answer = post(nsqd.http_address, target, b"topic=known&channel=c")  # a form in the body is ignored
    assert (answer.status, answer.body) == (status, problem(text))


def test_topics_and_channels_are_made_and_deleted(nsqd: Running) -> None:
    for target in ("/topic/create?topic=made%23ephemeral", "/channel/create?topic=made%23ephemeral&channel=c") * 2:
        answer = post(nsqd.http_address, target)
        assert (answer.status, answer.body, answer.headers.get("content-type")) == (200, b"", None)
    assert channel_stats(nsqd.http_address, "made#ephemeral") is not None
    assert post(nsqd.http_address, "/channel/delete?topic=made%23ephemeral&channel=c").status == 200
    wait_for(lambda: topic_stats(nsqd.http_address, "made#ephemeral") is None)


def test_emptying_a_topic_leaves_its_channels_alone(nsqd: Running) -> None:
    post(nsqd.http_address, "/topic/create?topic=he")
    post(nsqd.http_address, "/channel/create?topic=he&channel=c")
    post(nsqd.http_address, "/pub?topic=he", b"in the channel")
    wait_for(lambda: channel_stats(nsqd.http_address, "he")["depth"] == 1)
    post(nsqd.http_address, "/topic/pause?topic=he")
    post(nsqd.http_address, "/pub?topic=he", b"in the topic")
    assert post(nsqd.http_address, "/topic/empty?topic=he").status == 200
    found = topic_stats(nsqd.http_address, "he")
    assert (found["depth"], found["channels"][0]["depth"], found["message_count"]) == (0, 1, 2)
    assert (found["paused"], found["message_bytes"]) == (True, 26)


def test_46_stats_have_null_where_there_is_nothing(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("h46")
        full = stats(nsqd.http_address, "topic=h46")
        assert list(full) == ["version", "health", "start_time", "topics", "producers"]
        assert full["health"] == "OK"
        assert len(full["topics"][0]["channels"][0]["clients"]) == 1
        bare = stats(nsqd.http_address, "topic=h46&include_clients=false")
        assert bare["topics"][0]["channels"][0]["clients"] is None
        assert bare["topics"][0]["channels"][0]["client_count"] == 1
        assert bare["producers"] is None
    assert stats(nsqd.http_address, "topic=unknown")["topics"] is None
    assert stats(nsqd.http_address, "channel=unknown")["topics"] == []
    wait_for(lambda: channel_stats(nsqd.http_address, "h46")["clients"] == [])


def test_stats_have_all_keys_in_their_order(kind: Kind, nsqd: Running) -> None:
    topology = "topology_zone,topology_region," if has_topology(kind) else ""
    with Client(nsqd.tcp_address) as client:
        client.subscribe("keys")
        client.publish("keys", b"a")
        found = get(nsqd.http_address, "/stats?format=json").json()
    topic = next(each for each in found["topics"] if each["topic_name"] == "keys")
    found.pop("memory", None)  # ours has none
    assert ",".join(found) == "version,health,start_time,topics,producers"
    assert ",".join(topic) == (
        "topic_name,channels,depth,backend_depth,message_count,message_bytes,paused,e2e_processing_latency"
    )
    assert ",".join(topic["channels"][0]) == (
        "channel_name,depth,backend_depth,in_flight_count,deferred_count,message_count,requeue_count,timeout_count,"
        "client_count,clients,paused,e2e_processing_latency"
    )
    assert ",".join(topic["channels"][0]["clients"][0]) == (
        "client_id,hostname,version,remote_address,state,ready_count,in_flight_count,message_count,finish_count,"
        f"requeue_count,connect_ts,sample_rate,deflate,snappy,user_agent,{topology}pub_counts,tls,tls_cipher_suite,tls_version,"
        "tls_negotiated_protocol,tls_negotiated_protocol_is_mutual"
    )
    assert topic["e2e_processing_latency"] == {"count": 0, "percentiles": None}


@pytest.mark.parametrize("kind_of_publish", ["tcp", "http"])
def test_producers_are_connections_that_published(nsqd: Running, kind_of_publish: str) -> None:
    with Client(nsqd.tcp_address) as client:
        client.identify(client_id=f"maybe {kind_of_publish}")
        if kind_of_publish == "tcp":
            client.publish("h46p", b"a")
        else:
            post(nsqd.http_address, "/pub?topic=h46p", b"a")
        names = [each["client_id"] for each in stats(nsqd.http_address, "topic=h46p")["producers"] or []]
        assert (f"maybe {kind_of_publish}" in names) == (kind_of_publish == "tcp")


def test_stats_as_text(nsqd: Running) -> None:
    """Line by line, everything but figures and versions must be the same for ours and the real one."""
    with running_nsqd("ours" if nsqd.daemon else "real") as fresh:
        empty = get(fresh.http_address, "/stats?include_mem=false").body.decode().split("\n")
        assert empty[0].startswith("nsqd v1.3.0 (built w/")
        assert empty[1].startswith("start_time 20")
        assert empty[1].endswith("Z")
        assert empty[2].startswith("uptime ")
        assert empty[3:] == ["", "Health: OK", "", "Topics: None", "", "Producers: None", ""]
        with Client(fresh.tcp_address) as client, Client(fresh.tcp_address) as bare:
            client.identify(hostname="host", user_agent="ua/1")
            client.subscribe("t", "c")
            client.publish("t", b"a")
            bare.subscribe("u", "c")
            post(fresh.http_address, "/topic/create?topic=u")
            post(fresh.http_address, "/topic/pause?topic=u")
            wait_for(lambda: channel_stats(fresh.http_address, "t")["depth"] == 1)
            port, bare_port = client.sock.getsockname()[1], bare.sock.getsockname()[1]
            text = get(fresh.http_address, "/stats?include_mem=false").body.decode()
    rest = text.partition("\n\n")[2].partition("\n\n")[2]
    name = f"host:{port} ua/1"
    bare_name = f"127.0.0.1:{bare_port} "
    rest, count = re.subn(r"connected: \d+s$", "connected: -", rest, flags=re.MULTILINE)
    assert count == 3
    assert rest == "\n".join(
        [
            "Topics:",
            "   [t              ] depth: 0     be-depth: 0     msgs: 1        e2e%: ",
            "      [c                        ] depth: 1     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
            "timeout: 0     msgs: 1        e2e%: ",
            f"        [V2 {name:<21}] msgs: 1        topics: t=1 connected: -",
            "",
            "*P [u              ] depth: 0     be-depth: 0     msgs: 0        e2e%: ",
            "      [c                        ] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
            "timeout: 0     msgs: 0        e2e%: ",
            f"        [V2 {bare_name:<21}] state: 3 inflt: 0    rdy: 0    fin: 0        re-q: 0        "
            f"msgs: 0        connected: -",
            "",
            "Producers:",
            f"   [V2 {name:<21}] msgs: 1        topics: t=1 connected: -",
            "",
        ]
    )
