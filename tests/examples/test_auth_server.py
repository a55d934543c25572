"""examples/auth_server.py as a process, with an nsqd that uses it."""

from collections.abc import Iterator

import pytest

from gnsq_like import Producer, Reader
from gnsq_like.errors import NSQError
from tests.support.daemons import Kind, running_nsqd, wait_for
from tests.support.raw import Client, sized
from tests.support.web import ROOT, Server, running

pytestmark = pytest.mark.commands

KINDS = ["process", pytest.param("real", marks=pytest.mark.real_nsqd)]


@pytest.fixture(scope="module")
def auth_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    command = [str(ROOT / "examples" / "auth_server.py"), "0"]
    with running(command, tmp_path_factory.mktemp("auth_server"), r"Running on http://127\.0\.0\.1:(\d+)") as server:
        yield server


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("process", {}),
        ("process", {"auth_http_request_method": "post"}),
        pytest.param("real", {}, marks=pytest.mark.real_nsqd),
    ],
)
def test_a_secret_grants_the_permissions_in_the_example(
    kind: Kind, options: dict[str, str], auth_server: Server
) -> None:
    with running_nsqd(kind, auth_http_addresses=[f"127.0.0.1:{auth_server.port}"], **options) as nsqd:
        bodies: list[bytes] = []
        with Producer(nsqd.tcp_address, auth_secret="producer's secret") as producer:
            producer.publish("clicks", b"a click")
            with pytest.raises(NSQError, match="E_UNAUTHORIZED"):
                producer.publish("views", b"not allowed")
        reader = Reader(
            "clicks",
            "archive",
            lambda message: bodies.append(message.body),
            nsqd_tcp_addresses=[nsqd.tcp_address],
            auth_secret="consumer's secret",
        )
        reader.start()
        wait_for(lambda: bodies)
        reader.stop()
        assert bodies == [b"a click"]
    assert "secret" not in auth_server.log


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_secret_grants_nothing(kind: Kind, auth_server: Server) -> None:
    address = f"127.0.0.1:{auth_server.port}"
    with running_nsqd(kind, auth_http_addresses=[address]) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"AUTH\n", sized(b"a guess"))
        client.expect_fatal(b"E_UNAUTHORIZED AUTH no authorizations found")
