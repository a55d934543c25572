"""/config of ours and the real one (docs/internals 3.5), and the part of Go's /debug that ours has."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from gnsq_like.errors import InvalidAddress
from gnsq_like.server import NsqdOptions
from tests.support.daemons import Kind, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.raw import Answer, Client, get, http, post


@pytest.fixture(scope="module")
def nsqd(kind: Kind) -> Iterator[Running]:
    options = {"msg_timeout": 1.5, "node_id": 7, "e2e_processing_latency_percentiles": (0.99, 0.5, 1.0)}
    with running_nsqd(kind, **options) as running:
        yield running


def put(nsqd: Running, name: str, body: bytes) -> Answer:
    return http(nsqd.http_address, "PUT", f"/config/{name}", body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("msg_timeout", b"1500000000"),
        ("id", b"7"),
        ("max_rdy_count", b"2500"),
        ("snappy", b"true"),
        ("log_level", b"2"),
        ("tls_required", b"0"),
        ("nsqlookupd_tcp_addresses", b"[]"),
        ("e2e_processing_latency_percentiles", b"[1,0.99,0.5]"),
    ],
)
def test_an_option_is_shown_as_json(nsqd: Running, name: str, value: bytes) -> None:
    answer = get(nsqd.http_address, f"/config/{name}")
    assert (answer.status, answer.body) == (200, value)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


@pytest.mark.parametrize("run_as", ["ours", "process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_one_address_is_a_list_of_one(run_as: Kind) -> None:
    with running_nsqd(run_as, lookupd_tcp_addresses="127.0.0.1:9") as nsqd:
        answer = get(nsqd.http_address, "/config/nsqlookupd_tcp_addresses")
        assert answer.json() == ["127.0.0.1:9"]


@pytest.mark.parametrize(("name", "value"), [("log_prefix", b"[nsqd] "), ("broadcast_address", b"127.0.0.1")])
def test_a_text_is_shown_bare(nsqd: Running, name: str, value: bytes) -> None:
    answer = get(nsqd.http_address, f"/config/{name}")
    assert (answer.status, answer.body) == (200, value)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("name", ["nonsense", "node_id", "lookupd_tcp_addresses", "version", "config"])
def test_an_unknown_option_is_refused(nsqd: Running, name: str) -> None:
    answer = get(nsqd.http_address, f"/config/{name}")
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_OPTION"})


@pytest.mark.parametrize(
    ("name", "body", "status", "text"),
    [
        ("nsqlookupd_tcp_addresses", b"", 413, "INVALID_VALUE"),
        ("nsqlookupd_tcp_addresses", b"x" * (1024 * 1024 + 1), 413, "INVALID_VALUE"),
        ("nsqlookupd_tcp_addresses", b"127.0.0.1:4160", 400, "INVALID_VALUE"),
        ("nsqlookupd_tcp_addresses", b'"127.0.0.1:4160"', 400, "INVALID_VALUE"),
        ("nsqlookupd_tcp_addresses", b"[1]", 400, "INVALID_VALUE"),
        ("log_level", b"loud", 400, "INVALID_VALUE"),
        ("msg_timeout", b"1", 400, "INVALID_OPTION"),
        ("nonsense", b"1", 400, "INVALID_OPTION"),
    ],
)
def test_what_put_refuses(nsqd: Running, name: str, body: bytes, status: int, text: str) -> None:
    answer = put(nsqd, name, body)
    assert (answer.status, answer.json()) == (status, {"message": text})


def test_the_path_has_one_word_after_config(nsqd: Running) -> None:
    assert [get(nsqd.http_address, path).status for path in ("/config", "/config/", "/config/a/b")] == [404, 404, 404]
    answer = post(nsqd.http_address, "/config/log_level")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS, PUT")


def test_another_log_level_is_taken_whatever_its_case(nsqd: Running) -> None:
    assert put(nsqd, "log_level", b"ERROR").body == b"4"
    assert get(nsqd.http_address, "/config/log_level").body == b"4"
    assert put(nsqd, "log_level", b"info").body == b"2"


def test_other_nsqlookupds_are_followed_at_once(nsqd: Running, kind: Kind) -> None:
    post(nsqd.http_address, "/topic/create?topic=followed")

    def known(lookupd: Running) -> list[str]:
        found = get(lookupd.http_address, "/nodes").json()["producers"]
        return [topic for node in found for topic in node["topics"]]

    def has_moved(to: Running, away_from: Running) -> bool:
        return "followed" in known(to) and not known(away_from)

    with running_nsqlookupd(kind) as first, running_nsqlookupd(kind) as second:
        for lookupd, other in ((first, second), (second, first)):
            addresses = json.dumps([lookupd.tcp_address]).replace(" ", "").encode()
            assert put(nsqd, "nsqlookupd_tcp_addresses", addresses).body == addresses
            wait_for(partial(has_moved, lookupd, other))
        put(nsqd, "nsqlookupd_tcp_addresses", b"[]")
        wait_for(lambda: not known(second), "gone from both")


def test_the_stats_have_percentiles_of_the_time_to_fin(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("latency", rdy=1)
        post(nsqd.http_address, "/pub?topic=latency", b"x")
        client.send(b"FIN %b\n" % client.message().id)
        (topic,) = wait_for(
            lambda: [
                found
                for found in get(nsqd.http_address, "/stats?format=json&topic=latency").json()["topics"]
                if found["e2e_processing_latency"]["count"]
            ],
            "the FIN counted",
        )
        text = get(nsqd.http_address, "/stats?topic=latency").body.decode()
    (channel,) = topic["channels"]
    for found in (topic, channel):
        latency = found["e2e_processing_latency"]
        assert latency["count"] == 1
        assert [repr(each["quantile"]) for each in latency["percentiles"]] == ["1", "0.99", "0.5"]
        assert all(isinstance(each["value"], int) for each in latency["percentiles"])
        assert all(0 < each["value"] < 10e9 for each in latency["percentiles"])
    shown = [line.rpartition("e2e%: ")[2].split(", ") for line in text.splitlines() if "e2e%" in line]
    assert [len(values) for values in shown] == [3, 3]
    assert all(value.endswith(("us", "ms", "s")) for values in shown for value in values)


def test_ours_takes_what_older_documents_call_publishing() -> None:
    with running_nsqd() as nsqd:
        assert post(nsqd.http_address, "/put?topic=t", b"one").body == b"OK"
        assert post(nsqd.http_address, "/mput?topic=t", b"two\nthree").body == b"OK"
        with Client(nsqd.tcp_address) as client:
            client.subscribe("t", rdy=3)
            assert [client.message().body for _ in range(3)] == [b"one", b"two", b"three"]


def test_ours_shows_its_greenlets_and_its_command_line() -> None:
    with running_nsqd() as nsqd:
        shown = get(nsqd.http_address, "/debug/pprof/goroutine")
        assert shown.status == 200
        assert b"in _greenlets" in shown.body
        assert get(nsqd.http_address, "/debug/pprof/cmdline").status == 200
        assert post(nsqd.http_address, "/debug/freememory").status == 200


@pytest.mark.parametrize("address", ["nowhere", "tcp://127.0.0.1:4160"])
def test_an_nsqlookupd_without_a_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidAddress):
        NsqdOptions(lookupd_tcp_addresses=(address,))
    with running_nsqd() as nsqd:
        answer = http(nsqd.http_address, "PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([address]).encode())
        assert (answer.status, answer.json()) == (400, {"message": "INVALID_VALUE"})
