"""Zones and regions, which NSQ has after 1.3.0 (docs/internals 7.4): ours and the nsqd on PATH, if that has them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.server import NsqdOptions
from tests.support.daemons import LATER_KINDS, Kind, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.raw import Client, channel_stats, get, sized

later = pytest.mark.parametrize("kind", LATER_KINDS)

HERE = {"topology_zone": "z 1", "topology_region": "r"}
AWARE: dict[str, Any] = {**HERE, "enable_experiment": ("topology-aware-consumption",)}
#: By distance: one that says where it is, and one that says nothing.
PLACES: list[dict[str, str] | None] = [HERE, {**HERE, "topology_zone": "y"}, {"topology_zone": "y"}, {}, None]


@contextmanager
def consumer(nsqd: Running, place: dict[str, str] | None, topic: str, rdy: int = 0) -> Iterator[Client]:
    with Client(nsqd.tcp_address) as client:
        if place is not None:
            client.identify(**place)
        client.subscribe(topic, rdy=rdy)
        yield client


def counts(nsqd: Running, topic: str) -> dict[str, int]:
    figures = channel_stats(nsqd.http_address, topic)
    return {name: value for name, value in figures.items() if name.endswith(("local_msg_count", "global_msg_count"))}


@later
def test_where_an_nsqd_is(kind: Kind) -> None:
    with (
        running_nsqlookupd(kind) as lookupd,
        running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address], **AWARE) as nsqd,
    ):
        assert get(nsqd.http_address, "/info").body.endswith(
            b'"max_deflate_level":6,"topology_zone":"z 1","topology_region":"r"}'
        )
        with Client(nsqd.tcp_address) as client:
            client.send(b"IDENTIFY\n", sized(b'{"feature_negotiation":true}'))
            answer = client.frame()[1]
        assert answer.endswith(b'"output_buffer_timeout":250,"topology_region":"r","topology_zone":"z 1"}')
        nodes = wait_for(lambda: get(lookupd.http_address, "/nodes").body.partition(b'"version":')[2])
        assert nodes == b'"1.3.0","topology_zone":"z 1","topology_region":"r","tombstones":[],"topics":[]}]}'
        for name, value in (
            ("topology_zone", b"z 1"),
            ("topology_region", b"r"),
            ("enable_experiment", b'["topology-aware-consumption"]'),
            ("auth_http_request_method", b"get"),
        ):
            assert get(nsqd.http_address, f"/config/{name}").body == value


@later
def test_where_a_client_is(kind: Kind) -> None:
    with running_nsqd(kind) as nsqd, consumer(nsqd, HERE, "t"), consumer(nsqd, None, "t"):
        text = get(nsqd.http_address, "/stats?format=json").body.decode()
        assert '"user_agent":"","topology_zone":"z 1","topology_region":"r","tls":' in text
        assert '"user_agent":"","topology_zone":"","topology_region":"","tls":' in text


@later
@pytest.mark.parametrize("field", ["topology_zone", "topology_region"])
def test_a_place_is_text(kind: Kind, field: str) -> None:
    with running_nsqd(kind) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(b'{"%b":1}' % field.encode()))
        client.expect_fatal(b"E_BAD_BODY IDENTIFY failed to decode JSON body")


@later
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (AWARE, ["zone_local", "region_local", "global", "global", "global"]),
        (HERE, ["global"] * 5),
        ({}, ["global"] * 5),
        # Nobody said where this is: that is a place, too.
        ({**AWARE, **dict.fromkeys(HERE, "")}, ["global", "global", "region_local", "zone_local", "global"]),
    ],
)
def test_messages_are_counted_by_the_distance_of_their_consumers(
    kind: Kind, options: dict[str, Any], expected: list[str]
) -> None:
    with running_nsqd(kind, **options) as nsqd:
        for number, (place, name) in enumerate(zip(PLACES, expected, strict=True)):
            with consumer(nsqd, place, f"t{number}") as client:
                client.publish(f"t{number}", b"a")
                client.send(b"RDY 1\n")
                client.send(b"REQ " + client.message().id + b" 0\n")
                client.message()
                assert counts(nsqd, f"t{number}") == {f"{name}_msg_count": 2}


@later
def test_messages_from_disk_are_not_counted(kind: Kind, tmp_path: Any) -> None:
    options = {**AWARE, "mem_queue_size": 1, "data_path": str(tmp_path)}
    with running_nsqd(kind, **options) as nsqd, consumer(nsqd, HERE, "t") as client:
        client.publish("t", b"a", b"b", b"c")
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["backend_depth"] == 2)
        client.send(b"RDY 3\n")
        assert sorted(client.message().body for _ in range(3)) == [b"a", b"b", b"c"]
        assert counts(nsqd, "t") == {"zone_local_msg_count": 1}


def test_an_experiment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"enable_experiment.*topology-aware-consumption"):
        NsqdOptions(enable_experiment=("topology",))


def test_a_method_that_auth_servers_are_not_asked_by_is_refused() -> None:
    with pytest.raises(InvalidOption, match="must be post or get"):
        NsqdOptions(auth_http_request_method="POST")
