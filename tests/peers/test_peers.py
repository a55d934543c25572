"""Other people's clients against our nsqd: each publishes, consumes and requeues, with every feature it supports.

Run by ``make test-peers``. Each peer has an environment of its own below ``.venv/peers``, made at first use, and is
left out only if its language is not installed. A client is a script that is called with a role, an nsqd's address, a
topic, features ("plain", or IDENTIFY's names with "+" between), a CA file and a count:

- ``publish``: publishes the numbers below the count, prints "published" and ends with status 0;
- ``consume``: prints "<body> <attempts>" for each message of the channel "channel" and finishes it, but requeues
  number 0 without delay at its first attempt; it runs until it is stopped.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
import trustme

from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.files import whole_lines

pytestmark = pytest.mark.peers

CLIENTS = Path(__file__).with_name("clients")
ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".venv" / "peers"

COUNT = 20
TLS = ("tls_v1", "tls_v1+snappy", "tls_v1+deflate")
CODECS = ("snappy", "deflate")


class Peer(NamedTuple):
    """A client, its packages, and its features."""

    name: str
    requirements: tuple[str, ...]
    features: tuple[str, ...] = ("plain",)

    @property
    def is_javascript(self) -> bool:
        return self.name == "nsqjs"


PEERS = [
    # With a codec it sometimes takes "nothing to read yet" for the connection's end; with TLS and a codec always.
    Peer("pynsq", ("pynsq==0.9.1",), ("plain", "tls_v1")),
    Peer("gnsq", ("gnsq==1.0.2", "python-snappy"), ("plain", *CODECS, *TLS)),
    # It negotiates, but has neither TLS nor codecs ("not implemented yet").
    Peer("ansq", ("ansq==0.3.0",)),
    # Its TLS calls asyncio in a way that no Python since 3.10 allows.
    Peer("asyncnsq", ("asyncnsq==1.2.1", "python-snappy"), ("plain", *CODECS)),
    Peer("nsqjs", ("nsqjs@0.13.0",), ("plain", *CODECS, *TLS)),
]


def command_of(peer: Peer) -> list[str]:
    """The command that runs the peer's client, in its environment, which is made if necessary."""
    home = ENVIRONMENTS / peer.name
    stamp = home / f"installed {' '.join(peer.requirements)}"
    if peer.is_javascript and not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH")
    if not stamp.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        if peer.is_javascript:
            install(
                ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(home), *peer.requirements]
            )
        else:
            install([sys.executable, "-m", "venv", str(home)])
            install([str(home / "bin" / "pip"), "install", "--quiet", *peer.requirements])
        stamp.touch()
    if peer.is_javascript:
        # Node looks for modules next to the script.
        script = home / "client.js"
        shutil.copy(CLIENTS / "nsqjs_client.js", script)
        return ["node", str(script)]
    return [str(home / "bin" / "python"), str(CLIENTS / f"{peer.name}_client.py")]


def install(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"


class Certificate(NamedTuple):
    """Paths of PEM files."""

    certificate: str
    key: str
    ca: str


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for the loopback address."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    found = Certificate(str(folder / "cert.pem"), str(folder / "key.pem"), str(folder / "ca.pem"))
    authority.cert_pem.write_to_path(found.ca)
    issued.private_key_pem.write_to_path(found.key)
    with open(found.certificate, "wb") as file:
        file.writelines(blob.bytes() for blob in issued.cert_chain_pems)
    return found


@pytest.fixture(scope="module", params=["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def nsqd(request: pytest.FixtureRequest, certificate: Certificate) -> Iterator[Running]:
    """Ours; and the real one, which shows the peers' own limits."""
    with running_nsqd(request.param, tls_cert=certificate.certificate, tls_key=certificate.key) as running:
        yield running


CELLS = [pytest.param(peer, features, id=f"{peer.name}-{features}") for peer in PEERS for features in peer.features]


@pytest.mark.parametrize(("peer", "features"), CELLS)
def test_a_peer_publishes_consumes_and_requeues(
    nsqd: Running, certificate: Certificate, peer: Peer, features: str, tmp_path: Path
) -> None:
    topic = f"{peer.name}-{features.replace('+', '-')}"
    arguments = [nsqd.tcp_address, topic, features, certificate.ca, str(COUNT)]
    command = command_of(peer)

    done = subprocess.run([*command, "publish", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "published\n"), done.stderr

    with consuming([*command, "consume", *arguments], tmp_path) as (process, output):
        wait_for(
            lambda: len(lines_of(output)) > COUNT or process.poll() is not None,
            f"{COUNT} messages and one again",
        )
        assert process.poll() is None, "the client ended"
        channel = wait_for(lambda: channel_without_messages(nsqd, topic), "all finished")
        client = channel["clients"][0]
    expected = [("0", 2)] + [(str(number), 1) for number in range(COUNT)]
    assert sorted(lines_of(output)) == sorted(expected)
    assert (channel["message_count"], channel["requeue_count"], channel["timeout_count"]) == (COUNT, 1, 0)
    assert {name for name in ("tls", "snappy", "deflate") if client[name]} == {
        name.removesuffix("_v1") for name in features.split("+")
    } - {"plain"}


@contextmanager
def consuming(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The running client, and the file with its output."""
    output, errors = folder / "output", folder / "errors"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
    try:
        yield process, output
    except AssertionError as exc:
        raise AssertionError(f"{exc}\n{errors.read_text()}") from None
    finally:
        process.kill()
        process.wait()


def lines_of(output: Path) -> list[tuple[str, int]]:
    """Each message's body and attempts."""
    words = [line.split() for line in whole_lines(output)]
    return [(body, int(attempts)) for body, attempts in words]


def channel_without_messages(nsqd: Running, topic: str) -> dict[str, Any]:
    """The channel's figures if all its messages are finished, else nothing."""
    with urlopen(f"http://{nsqd.http_address}/stats?format=json&topic={topic}") as answer:
        (found,) = json.load(answer)["topics"]
    (channel,) = found["channels"]
    return {} if channel["depth"] or channel["in_flight_count"] or channel["deferred_count"] else channel
