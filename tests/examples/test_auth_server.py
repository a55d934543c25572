"""examples/auth_server.py, run as its readers run it, with an nsqd that asks it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_like import Producer, Reader
from gnsq_like.errors import NSQError
from tests.support.daemons import Kind, running_nsqd, wait_for
from tests.support.raw import Client, sized

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "auth_server.py"
KINDS = ["process", pytest.param("real", marks=pytest.mark.real_nsqd)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What it prints."""
    return tmp_path_factory.mktemp("auth_server") / "log"


@pytest.fixture(scope="module")
def auth_server(log: Path) -> Iterator[str]:
    """Its address."""
    with (
        log.open("wb") as file,
        subprocess.Popen([sys.executable, str(EXAMPLE), "0"], stdout=file, stderr=file) as process,
    ):
        try:
            found = wait_for(lambda: re.search(r"Running on http://(\S+)", log.read_text()), "the auth server", 20)
            yield found[1]
        finally:
            process.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_who_knows_a_secret_may_do_what_the_example_says(kind: Kind, auth_server: str, log: Path) -> None:
    with running_nsqd(kind, auth_http_addresses=[auth_server]) as nsqd:
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
    assert "secret" not in log.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_may_do_nothing(kind: Kind, auth_server: str) -> None:
    with running_nsqd(kind, auth_http_addresses=[auth_server]) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"AUTH\n", sized(b"a guess"))
        client.expect_fatal(b"E_UNAUTHORIZED AUTH no authorizations found")
