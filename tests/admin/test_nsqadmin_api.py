"""The JSON API: the same assertions for ours and NSQ's own, and both compared field by field.

NSQ's nsqadmin adds other nodes' figures to the channels of the first node of a topic, so those are left out of the
comparison; their sums are not.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.admin.conftest import Daemons
from tests.support import raw
from tests.support.admins import AskedAdmin, running_admin
from tests.support.daemons import LATER_KINDS, is_after_1_3_0, wait_for

pytestmark = pytest.mark.commands

needs_nsqadmin = pytest.mark.skipif(shutil.which("nsqadmin") is None, reason="no nsqadmin on PATH")


def fill(daemons: Daemons) -> None:
    """Topics with and without channels, depth, clients; one known to nsqlookupds only, one tombstoned."""
    first, second, third = daemons.nsqd_addresses
    for address in (first, second):
        raw.post(address, "/topic/create?topic=clicks")
        raw.post(address, "/channel/create?topic=clicks&channel=archive")
    raw.post(second, "/channel/create?topic=clicks&channel=mail%23ephemeral")
    for address in (first, second):
        for number in range(3):
            raw.post(address, "/pub?topic=clicks", b"%d" % number)
    raw.post(second, "/channel/pause?topic=clicks&channel=archive")
    for _ in range(5):
        raw.post(third, "/pub?topic=alone", b"x")
    raw.post(first, "/pub?topic=hidden", b"x")
    for address in daemons.lookupd_addresses:
        raw.post(address, "/topic/create?topic=idle")
        raw.post(address, "/channel/create?topic=idle&channel=left")
    daemons.wait_until_known("clicks", 2, channels=2)
    daemons.wait_until_known("alone", 1)
    daemons.wait_until_known("hidden", 1)
    for address in daemons.lookupd_addresses:
        raw.post(address, f"/topic/tombstone?topic=hidden&node={first}")

    def settled() -> bool:
        topics = [raw.topic_stats(address, "clicks") for address in (first, second)]
        return [channel["depth"] for topic in topics for channel in topic["channels"]] == [3] * 3

    wait_for(settled, "the messages")


@pytest.fixture
def admin(daemons: Daemons) -> Iterator[AskedAdmin]:
    """Ours in front of ours, NSQ's own in front of NSQ's own."""
    if daemons.kind == "real" and shutil.which("nsqadmin") is None:
        pytest.skip("no nsqadmin on PATH")
    fill(daemons)
    with running_admin(daemons.kind, lookupd_http_addresses=daemons.lookupd_addresses) as admin:
        yield admin


def test_topics(admin: AskedAdmin) -> None:
    assert admin.get("/api/topics") == {"topics": ["alone", "clicks", "hidden", "idle"], "message": ""}


def test_topics_without_nodes(admin: AskedAdmin) -> None:
    """The tombstoned one counts: a Reader would not find its node either."""
    topics = {"hidden": None, "idle": ["left"]}
    assert admin.get("/api/topics?inactive=true") == {"topics": topics, "message": ""}


def test_a_topic_is_the_sum_of_its_nodes(admin: AskedAdmin, daemons: Daemons) -> None:
    topic = admin.get("/api/topics/clicks")
    assert [name for name in topic if name != "delivery_msg_count"] == [
        *("node", "hostname", "topic_name", "depth", "memory_depth", "backend_depth", "message_count", "nodes"),
        *("channels", "paused", "e2e_processing_latency", "message"),
    ]
    assert (topic["node"], topic["depth"], topic["message_count"], topic["message"]) == ("*", 0, 6, "")
    assert {node["node"] for node in topic["nodes"]} == {*daemons.nsqd_addresses[:2]}
    channels = {channel["channel_name"]: channel for channel in topic["channels"]}
    assert {*channels} == {"archive", "mail#ephemeral"}
    archive = channels["archive"]
    assert (archive["node"], archive["depth"], archive["paused"], archive["clients"]) == ("*", 6, True, None)


def test_a_channel_has_its_clients(admin: AskedAdmin, daemons: Daemons) -> None:
    with raw.Client(daemons.nsqds[0].tcp_address) as client:
        client.send(b"IDENTIFY\n", raw.sized(b'{"client_id":"me","hostname":"here","user_agent":"test/1"}'))
        client.expect(b"OK")
        client.subscribe("clicks", "archive", rdy=1)
        client.message()
        channel = admin.get("/api/topics/clicks/archive")
    assert (channel["in_flight_count"], channel["depth"], channel["client_count"]) == (1, 5, 1)
    [found] = channel["clients"]
    assert (found["node"], found["client_id"], found["user_agent"]) == (daemons.nsqd_addresses[0], "me", "test/1")
    assert found["connected"] >= 0 and found["connected"] % 1_000_000_000 == 0
    assert found["ready_count"] == 1


def consume(client: raw.Client, zone: str, region: str = "eu") -> None:
    """Take a message of clicks/archive as a client of this zone."""
    client.identify(topology_zone=zone, topology_region=region, client_id=zone)
    client.subscribe("clicks", "archive", rdy=1)
    client.message()


@pytest.mark.parametrize("kind", LATER_KINDS, indirect=True)
def test_zones_and_regions(admin: AskedAdmin, daemons: Daemons) -> None:
    nodes = {node["tcp_port"]: node for node in admin.get("/api/nodes")["nodes"]}
    places = [(node["topology_region"], node["topology_zone"]) for _, node in sorted(nodes.items())]
    assert sorted(places) == [("eu", "eu-1"), ("eu", "eu-2"), ("eu", "eu-3")]
    first = daemons.nsqds[0].tcp_address
    with raw.Client(first) as near, raw.Client(first) as region, raw.Client(first) as far:
        consume(near, "eu-1")
        consume(region, "eu-2")
        consume(far, "us-1", "us")
        channel = admin.get("/api/topics/clicks/archive")
    names = ("delivery_msg_count", "zone_local_msg_count", "region_local_msg_count", "global_msg_count")
    assert [channel[name] for name in names] == [3, 1, 1, 1]
    unread = next(node for node in channel["nodes"] if node["message_count"] and not node["in_flight_count"])
    assert not {*names} & {*unread}
    clients = {client["client_id"]: client for client in channel["clients"]}
    names = ("node_topology_region", "node_topology_zone", "topology_region", "topology_zone")
    assert [clients["us-1"][name] for name in names] == ["eu", "eu-1", "us", "us-1"]


def test_an_unknown_channel_has_only_a_message(admin: AskedAdmin, daemons: Daemons) -> None:
    assert admin.ask("GET", "/api/topics/clicks/nope") == unknown_channel(daemons)


def unknown_channel(daemons: Daemons) -> tuple[int, dict[str, str]]:
    """The answer to the question for a channel that there is not; NSQ's master fails."""
    if daemons.kind == "real" and is_after_1_3_0():
        return 500, {"message": "INTERNAL_ERROR"}
    return 200, {"message": ""}


def test_nodes(admin: AskedAdmin, daemons: Daemons) -> None:
    nodes = {f"{node['broadcast_address']}:{node['http_port']}": node for node in admin.get("/api/nodes")["nodes"]}
    assert {*nodes} == {*daemons.nsqd_addresses}
    first = nodes[daemons.nsqd_addresses[0]]
    assert {each["topic"]: each["tombstoned"] for each in first["topics"]} == {"clicks": False, "hidden": True}
    assert sorted(each.split("/")[0] for each in first["remote_addresses"]) == sorted(daemons.lookupd_addresses)
    assert first["out_of_date"] is False


def test_a_node(admin: AskedAdmin, daemons: Daemons) -> None:
    node = admin.get(f"/api/nodes/{daemons.nsqd_addresses[2]}")
    assert (node["node"], node["total_messages"], node["total_clients"]) == (daemons.nsqd_addresses[2], 5, 0)
    assert [topic["topic_name"] for topic in node["topics"]] == ["alone"]
    reply = admin.ask("GET", "/api/nodes/127.0.0.1:9")
    assert reply == (404, {"message": "NODE_NOT_FOUND"})


def test_counter(admin: AskedAdmin, daemons: Daemons) -> None:
    stats = admin.get("/api/counter")["stats"]
    first, second, _ = daemons.nsqd_addresses
    assert {name: stat["message_count"] for name, stat in stats.items()} == {
        f"clicks:archive:{first}": 3,
        f"clicks:archive:{second}": 3,
        f"clicks:mail#ephemeral:{second}": 3,
    }
    assert {*stats[f"clicks:archive:{first}"]} == {"node", "topic_name", "channel_name", "message_count"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/api/topics", b"", 400, "EOF"),
        ("POST", "/api/topics", {"topic": "no blanks"}, 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "t", "channel": "no/slashes"}, 400, "INVALID_CHANNEL"),
        ("POST", "/api/topics", {}, 400, "INVALID_TOPIC"),
        ("POST", "/api/topics/clicks", {"action": "sing"}, 400, "INVALID_ACTION"),
        ("POST", "/api/topics/clicks/archive", {"action": "sing"}, 400, "INVALID_ACTION"),
        ("POST", "/api/topics/clicks", b"", 400, "EOF"),
        ("DELETE", "/api/nodes/127.0.0.1:9", b"", 400, "INVALID_BODY"),
        ("DELETE", "/api/nodes/127.0.0.1:9", {"topic": "no blanks"}, 400, "INVALID_TOPIC"),
        ("PUT", "/api/topics", b"", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/api/nope", b"", 404, "NOT_FOUND"),
        ("GET", "/config/nope", b"", 400, "INVALID_OPTION"),
        ("PUT", "/config/base_path", b"x", 400, "INVALID_OPTION"),
        ("PUT", "/config/log_level", b"", 413, "INVALID_VALUE"),
        ("PUT", "/config/log_level", b"loud", 400, "INVALID_VALUE"),
        ("PUT", "/config/nsqlookupd_http_addresses", b"{}", 400, "INVALID_VALUE"),
    ],
)
def test_refusals(admin: AskedAdmin, method: str, path: str, body: object, status: int, message: str) -> None:
    assert admin.ask(method, path, body) == (status, {"message": message})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/topics/nope", None),
        ("GET", "/api/topics/nope/c", None),
        ("GET", "/api/topics/idle", None),
        ("POST", "/api/topics/nope", {"action": "pause"}),
        ("DELETE", "/api/topics/nope", None),
        ("DELETE", "/api/topics/nope/c", None),
    ],
)
def test_a_topic_that_no_node_has(admin: AskedAdmin, method: str, path: str, body: object) -> None:
    reply = admin.ask(method, path, body)
    assert reply.status == 502
    assert reply.value["message"].startswith("UPSTREAM_ERROR: failed to query any nsq")


def test_create(admin: AskedAdmin, daemons: Daemons) -> None:
    assert admin.ask("POST", "/api/topics", {"topic": "new"}) == (200, {"message": ""})
    assert admin.ask("POST", "/api/topics", {"topic": "clicks", "channel": "extra"}) == (200, {"message": ""})
    assert admin.get("/api/topics?inactive=true")["topics"]["new"] is None
    for address in daemons.nsqd_addresses[:2]:
        assert raw.channel_stats(address, "clicks", "extra") is not None
    assert raw.topic_stats(daemons.nsqd_addresses[2], "clicks") is None


def test_pause_unpause_and_empty(admin: AskedAdmin, daemons: Daemons) -> None:
    def paused() -> tuple[bool, bool]:
        topic = admin.get("/api/topics/clicks")
        [archive] = [each for each in topic["channels"] if each["channel_name"] == "archive"]
        return topic["paused"], archive["paused"]

    assert paused() == (False, True)
    assert admin.ask("POST", "/api/topics/clicks", {"action": "pause"}) == (200, {"message": ""})
    assert admin.ask("POST", "/api/topics/clicks/archive", {"action": "unpause"}) == (200, {"message": ""})
    assert paused() == (True, False)
    assert admin.ask("POST", "/api/topics/clicks", {"action": "unpause"}).status == 200
    assert admin.ask("POST", "/api/topics/clicks/archive", {"action": "empty"}).status == 200
    assert admin.ask("POST", "/api/topics/alone", {"action": "empty"}).status == 200
    assert admin.get("/api/topics/clicks/archive")["depth"] == 0
    assert admin.get("/api/topics/alone")["depth"] == 0


def test_delete(admin: AskedAdmin, daemons: Daemons) -> None:
    assert admin.ask("DELETE", "/api/topics/clicks/archive") == (200, {"message": ""})
    assert admin.ask("GET", "/api/topics/clicks/archive") == unknown_channel(daemons)
    assert admin.ask("DELETE", "/api/topics/clicks") == (200, {"message": ""})
    assert admin.ask("GET", "/api/topics/clicks").status == 502
    for address in daemons.nsqd_addresses:
        assert raw.topic_stats(address, "clicks") is None


def test_tombstone(admin: AskedAdmin, daemons: Daemons) -> None:
    first = daemons.nsqd_addresses[0]
    assert admin.ask("DELETE", f"/api/nodes/{first}", {"topic": "clicks"}) == (200, {"message": ""})
    assert raw.topic_stats(first, "clicks") is None
    assert [each["node"] for each in admin.get("/api/topics/clicks")["nodes"]] == [daemons.nsqd_addresses[1]]


@pytest.mark.parametrize("topic", ["clicks", "unknown"])
def test_a_node_that_cannot_be_reached_is_not_tombstoned_in_silence(admin: AskedAdmin, topic: str) -> None:
    reply = admin.ask("DELETE", "/api/nodes/127.0.0.1:1", {"topic": topic})
    assert reply.status == 502
    assert reply.value["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd: ")


@pytest.mark.parametrize(
    ("method", "path", "status", "location"),
    [
        ("GET", "/API/topics", 301, "/api/topics"),
        ("POST", "/API/Topics/clicks?x=1", 307, "/api/topics/clicks?x=1"),
        ("GET", "/Topics/clicks", 301, "/topics/clicks"),
        ("GET", "/Ping", 301, "/ping"),
        ("GET", "/api/nothing", 404, None),
        ("POST", "/nothing", 404, None),
        ("POST", "/topics", 405, None),
        ("PUT", "/ping", 405, None),
    ],
)
def test_paths_in_the_wrong_case_and_those_that_are_none(
    admin: AskedAdmin, method: str, path: str, status: int, location: str | None
) -> None:
    answer = raw.http(admin.address, method, path)
    assert (answer.status, answer.headers.get("location")) == (status, location)
    if status >= 400:
        assert answer.json() == {"message": "NOT_FOUND" if status == 404 else "METHOD_NOT_ALLOWED"}


def test_a_failure_in_part_is_a_warning(admin: AskedAdmin, daemons: Daemons) -> None:
    daemons.nsqds[0].stop()
    daemons.lookupds[0].stop()
    topics = admin.get("/api/topics")
    assert topics["topics"] == ["alone", "clicks", "hidden", "idle"]
    assert topics["message"].startswith("WARNING: ")
    assert admin.get("/api/nodes")["message"].startswith("WARNING: ")
    daemons.lookupds[1].stop()
    reply = admin.ask("GET", "/api/topics")
    assert reply.status == 502
    assert reply.value["message"].startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: ")


def test_config(admin: AskedAdmin, daemons: Daemons) -> None:
    assert admin.get("/config/nsqlookupd_http_addresses") == [*daemons.lookupd_addresses]
    assert admin.get("/config/log_level") == 2
    assert admin.get("/config/http_client_request_timeout") in (5_000_000_000, 60_000_000_000)  # ours is patient here
    assert admin.ask("PUT", "/config/log_level", b"WARN") == (200, 3)
    assert admin.ask("PUT", "/config/log_level", b"info") == (200, 2)
    left = [daemons.lookupd_addresses[1]]
    assert admin.ask("PUT", "/config/nsqlookupd_http_addresses", left) == (200, left)
    assert [each.split("/")[0] for each in admin.get("/api/nodes")["nodes"][0]["remote_addresses"]] == left
    answer = raw.get(admin.address, "/config/base_path")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"/", "text/plain; charset=utf-8")


def test_forms_of_answers(admin: AskedAdmin) -> None:
    answer = raw.get(admin.address, "/api/topics")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert raw.get(admin.address, "/ping").body == b"OK"
    moved = raw.get(admin.address, "/api/topics/")
    assert (moved.status, moved.headers["location"]) == (301, "/api/topics")
    assert raw.http(admin.address, "PUT", "/api/topics").headers["allow"] == "GET, OPTIONS, POST"
    options = raw.http(admin.address, "OPTIONS", "/api/topics/t/c")
    assert (options.status, options.headers["allow"], options.body) == (200, "DELETE, GET, OPTIONS, POST", b"")


# -- field by field -----------------------------------------------------------------------------------

PATHS = [
    "/api/topics",
    "/api/topics?inactive=true",
    "/api/topics/clicks",
    "/api/topics/clicks/archive",
    "/api/topics/clicks/mail%23ephemeral",
    "/api/topics/clicks/nope",
    "/api/topics/alone",
    "/api/nodes",
    "/api/nodes/{0}",
    "/api/nodes/{2}",
    "/api/counter",
]


def comparable(path: str, value: Any) -> Any:
    """A response without what NSQ leaves to chance: the order of nodes of one host name, and of nsqlookupds."""
    value = copy.deepcopy(value)
    if path == "/api/nodes":
        for node in value["nodes"]:
            if node["remote_addresses"] is not None:
                node["remote_addresses"] = sorted(each.split("/")[0] for each in node["remote_addresses"])
            del node["remote_address"]
        value["nodes"].sort(key=lambda node: node["http_port"])
    if path == "/api/topics/clicks":
        value["channels"].sort(key=lambda channel: channel["channel_name"])
        for channel in value["channels"]:
            del channel["nodes"]
            if channel["node"] == "*":  # NSQ adds up in the first node's own
                del channel["e2e_processing_latency"]
        for node in value["nodes"]:
            del node["channels"]
    for topic in (value, *(value.get("topics") or ()), *(value.get("nodes") or ())):
        # In master a topic has one, which is always 0.
        if isinstance(topic, dict) and topic.get("delivery_msg_count") == 0:
            del topic["delivery_msg_count"]
    if isinstance(value.get("nodes"), list) and path != "/api/nodes":
        value["nodes"].sort(key=lambda node: node["node"])
    for client in value.get("clients") or ():
        del client["connected"]
    return value


def fields_of(value: Any) -> Any:
    """The names and types of all fields, in their order."""
    if isinstance(value, dict):
        return [(name, fields_of(each)) for name, each in value.items()]
    return [fields_of(each) for each in value] if isinstance(value, list) else type(value)


@pytest.mark.real_nsqd
@needs_nsqadmin
@pytest.mark.parametrize("daemons_kind", ["lookupds", "nsqds"])
@pytest.mark.parametrize("kind", [pytest.param("real", marks=pytest.mark.real_nsqd)], indirect=True)
def test_field_by_field(daemons: Daemons, daemons_kind: str) -> None:
    fill(daemons)
    addresses = (
        {"lookupd_http_addresses": daemons.lookupd_addresses}
        if daemons_kind == "lookupds"
        else {"nsqd_http_addresses": daemons.nsqd_addresses}
    )
    with (
        raw.Client(daemons.nsqds[0].tcp_address) as client,
        running_admin("real", **addresses) as theirs,
        running_admin("ours", **addresses) as ours,
    ):
        client.identify(client_id="me", hostname="here", user_agent="test/1", topology_region="eu")
        client.subscribe("clicks", "archive", rdy=1)
        client.message()
        for pattern in PATHS:
            path = pattern.format(*daemons.nsqd_addresses)
            expected, found = theirs.ask("GET", path), ours.ask("GET", path)
            if path == "/api/topics/clicks/nope" and is_after_1_3_0():
                assert (found, expected) == ((200, {"message": ""}), unknown_channel(daemons))
                continue
            assert found.status == expected.status == 200, path
            assert comparable(path, found.value) == comparable(path, expected.value), path
            assert fields_of(comparable(path, found.value)) == fields_of(comparable(path, expected.value)), path
        for path in ("/api/topics/nope", "/api/topics/nope/c", "/api/nodes/127.0.0.1:9"):
            assert ours.ask("GET", path).status == theirs.ask("GET", path).status, path
