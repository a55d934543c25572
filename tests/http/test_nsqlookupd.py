"""nsqlookupd's HTTP API, each method by its effect, against ours and the real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_like.errors import HTTPRequestFailed, HTTPStatusError, InvalidAddress, InvalidName
from gnsq_like.http.nsqlookupd import LookupResult, NsqdNode
from tests.support.daemons import KINDS, Kind, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.scripted_http import always, response, scripted


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def lookupd(kind: Kind) -> Iterator[Any]:
    with running_nsqlookupd(kind) as running:
        yield running


@pytest.fixture
def client(lookupd: Any) -> Iterator[LookupdClient]:
    with LookupdClient(lookupd.http_address) as client:
        yield client


@pytest.fixture
def nsqd(kind: Kind, lookupd: Any) -> Iterator[Any]:
    with running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address]) as running:
        yield running


@pytest.fixture
def nsqd_client(nsqd: Any) -> Iterator[NsqdHTTPClient]:
    with NsqdHTTPClient(nsqd.http_address) as client:
        yield client


def refused(*, status: int, message: str) -> Any:
    return pytest.raises(HTTPStatusError, match=f"HTTP {status} {message}$")


def test_ping(client: LookupdClient) -> None:
    assert client.ping() == "OK"


def test_info(client: LookupdClient) -> None:
    assert client.info()["version"][0].isdigit()


def test_topics_and_channels(client: LookupdClient, nsqd_client: NsqdHTTPClient) -> None:
    assert client.topics() == []
    assert client.channels("t") == []
    nsqd_client.create_topic("t")
    nsqd_client.create_channel("t", "c")
    nsqd_client.create_channel("t", "d#ephemeral")
    wait_for(lambda: client.topics() == ["t"])
    wait_for(lambda: sorted(client.channels("t")) == ["c", "d#ephemeral"])


def test_lookup(client: LookupdClient, nsqd: Any, nsqd_client: NsqdHTTPClient) -> None:
    nsqd_client.create_topic("t")
    nsqd_client.create_channel("t", "c")
    wait_for(lambda: client.lookup("t", missing_ok=True).channels == ("c",))
    found = client.lookup("t")
    (node,) = found.producers
    assert node.tcp_address == nsqd.tcp_address
    assert node.http_address == nsqd.http_address
    assert node.broadcast_address == "127.0.0.1"
    assert node.version == nsqd_client.info().version
    assert node.hostname == nsqd_client.info().hostname
    assert node.remote_address.startswith("127.0.0.1:")
    assert (node.topics, node.tombstones) == ((), ())


def test_lookup_of_an_unknown_topic(client: LookupdClient) -> None:
    with pytest.raises(HTTPStatusError) as caught:
        client.lookup("t")
    assert (caught.value.status, caught.value.message) == (404, "TOPIC_NOT_FOUND")
    assert client.lookup("t", missing_ok=True) == LookupResult((), ())


def test_nodes(client: LookupdClient, nsqd: Any, nsqd_client: NsqdHTTPClient) -> None:
    nsqd_client.create_topic("t")
    nsqd_client.create_topic("u")
    wait_for(lambda: [sorted(node.topics) for node in client.nodes()] == [["t", "u"]])
    (node,) = client.nodes()
    assert node.tcp_address == nsqd.tcp_address
    assert node.tombstones == (False, False)
    nsqd.kill()
    wait_for(lambda: client.nodes() == [])
    assert client.lookup("t") == LookupResult((), ())


def test_create_and_delete_a_topic(client: LookupdClient) -> None:
    client.create_topic("t")
    assert client.topics() == ["t"]
    assert client.lookup("t") == LookupResult((), ())
    client.create_channel("t", "c")
    client.delete_topic("t")
    assert client.topics() == []
    assert client.channels("t") == []
    client.delete_topic("t")


def test_create_and_delete_a_channel(client: LookupdClient) -> None:
    client.create_channel("t", "c")
    assert client.topics() == ["t"]
    assert client.channels("t") == ["c"]
    client.delete_channel("t", "c")
    assert client.channels("t") == []
    assert client.topics() == ["t"]
    with refused(status=404, message="CHANNEL_NOT_FOUND"):
        client.delete_channel("t", "c")


@pytest.mark.parametrize("form", ["node", "text"])
def test_tombstone(client: LookupdClient, nsqd: Any, nsqd_client: NsqdHTTPClient, form: str) -> None:
    nsqd_client.create_topic("t")
    nsqd_client.create_topic("u")
    wait_for(lambda: [sorted(node.topics) for node in client.nodes()] == [["t", "u"]])
    (node,) = client.nodes()
    client.tombstone("t", node if form == "node" else nsqd.http_address)
    assert client.lookup("t").producers == ()
    assert len(client.lookup("u").producers) == 1
    (node,) = client.nodes()
    assert dict(zip(node.topics, node.tombstones, strict=True)) == {"t": True, "u": False}
    assert node.tombstoned_topics == {"t"}
    client.tombstone("t", "nobody:1")


def test_tombstone_of_an_ipv6_node(kind: Kind, lookupd: Any, client: LookupdClient) -> None:
    options = {"broadcast_address": "::1", "lookupd_tcp_addresses": [lookupd.tcp_address]}
    with running_nsqd(kind, **options) as nsqd, NsqdHTTPClient(nsqd.http_address) as nsqd_client:
        nsqd_client.create_topic("t")
        wait_for(lambda: client.lookup("t", missing_ok=True).producers)
        (node,) = client.lookup("t").producers
        assert node.tcp_address == f"[::1]:{nsqd.tcp_address.rpartition(':')[2]}"
        client.tombstone("t", node)
        assert client.lookup("t").producers == ()


@pytest.mark.parametrize("node", ["", "host", ":4151", None, 5])
def test_tombstone_of_what_is_no_node(node: Any) -> None:
    with pytest.raises(InvalidAddress):
        LookupdClient("127.0.0.1:1").tombstone("t", node)


def test_debug(client: LookupdClient, nsqd: Any, nsqd_client: NsqdHTTPClient) -> None:
    assert client.debug().keys() <= {"client::"}
    nsqd_client.create_topic("t")
    nsqd_client.create_channel("t", "c")
    wait_for(lambda: client.debug().keys() == {"client::", "topic:t:", "channel:t:c"})
    (producer,) = client.debug()["topic:t:"]
    assert f"127.0.0.1:{producer['tcp_port']}" == nsqd.tcp_address
    assert producer["tombstoned"] is False


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "#ephemeral", "t\n", None, 5, b"t"])
def test_names_are_checked_before_anything_is_sent(name: Any) -> None:
    client = LookupdClient("127.0.0.1:1")  # nobody listens there: what is sent fails otherwise
    for of_topic in (client.channels, client.lookup, client.create_topic, client.delete_topic):
        with pytest.raises(InvalidName):
            of_topic(name)
    for of_channel in (client.create_channel, client.delete_channel):
        with pytest.raises(InvalidName):
            of_channel("t", name)
        with pytest.raises(InvalidName):
            of_channel(name, "c")
    with pytest.raises(InvalidName):
        client.tombstone(name, "host:1")


# --- answers of other versions ---

PRODUCER = '{"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151}'


def looked_up(body: str) -> LookupResult:
    with scripted(always(response(body))) as server, LookupdClient(server.address) as client:
        return client.lookup("t")


@pytest.mark.parametrize(
    "body",
    [
        f'{{"channels": ["c"], "producers": [{PRODUCER}]}}',
        '{"channels": ["c"], "producers": [{"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151,'
        ' "topics": null, "tombstones": null, "new": 1}]}',
    ],
)
def test_formats_of_a_lookup(body: str) -> None:
    assert looked_up(body) == LookupResult(("c",), (NsqdNode("10.0.0.1", 4150, 4151),))


def test_null_for_an_empty_list() -> None:
    assert looked_up('{"channels": null, "producers": null}') == LookupResult()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"channels": []}', '"producers" is not a list of dict'),
        ('{"producers": []}', '"channels" is not a list of str'),
        ('{"channels": [], "producers": {}}', '"producers" is not a list of dict'),
        ('{"channels": [], "producers": ["x"]}', '"producers" is not a list of dict'),
        ('{"channels": [], "producers": [null]}', '"producers" is not a list of dict'),
        (
            '{"channels": [], "producers": [{"tcp_port": 1, "http_port": 2}]}',
            '"broadcast_address" is not text',
        ),
        (
            '{"channels": [], "producers": [{"broadcast_address": "", "tcp_port": 1, "http_port": 2}]}',
            '"broadcast_address" is empty',
        ),
        (
            '{"channels": [], "producers": [{"broadcast_address": 5, "tcp_port": 1, "http_port": 2}]}',
            '"broadcast_address" is not text',
        ),
        (
            '{"channels": [], "producers": [{"broadcast_address": "h", "http_port": 2}]}',
            '"tcp_port" is not a whole number',
        ),
        (
            '{"channels": [], "producers": [{"broadcast_address": "h", "tcp_port": "1", "http_port": 2}]}',
            '"tcp_port" is not a whole number',
        ),
        (
            '{"channels": [], "producers": [{"broadcast_address": "h", "tcp_port": 1, "http_port": true}]}',
            '"http_port" is not a whole number',
        ),
        (
            '{"channels": [], "producers": [{"broadcast_address": "h", "tcp_port": 1, "http_port": 2, "version": 3}]}',
            '"version" is not text',
        ),
        (
            '{"channels": [], "producers": [{"broadcast_address": "h", "tcp_port": 1, "http_port": 2, "topics": "t"}]}',
            '"topics" is not a list of str',
        ),
    ],
)
def test_malformed_lookups(body: str, reason: str) -> None:
    with pytest.raises(HTTPRequestFailed) as caught:
        looked_up(body)
    assert caught.value.reason == f"the answer is malformed: {reason}"


def test_debug_that_is_malformed() -> None:
    with (
        scripted(always(response('{"client::": 5}'))) as server,
        LookupdClient(server.address) as client,
        pytest.raises(HTTPRequestFailed, match='"client::" is not a list of dict'),
    ):
        client.debug()


def test_addresses_of_a_node() -> None:
    assert NsqdNode("host", 4150, 4151).tcp_address == "host:4150"
    assert NsqdNode("::1", 4150, 4151).tcp_address == "[::1]:4150"
    assert NsqdNode("[::1]", 4150, 4151).http_address == "[::1]:4151"
