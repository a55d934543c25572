"""Certificates, files and secrets that are wrong for a while: a Reader that was connected before goes on after that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
import pytest

from gnsq_like import Message, Reader
from gnsq_like.errors import ConnectionFailed, NSQError
from gnsq_like.testing import FaultProxy
from tests.support.auth_server import AuthServer, running_auth_server
from tests.support.certificates import authority, stranger, write_ca, write_certificate
from tests.support.daemons import KINDS, Kind, Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass
class Scene:
    """An nsqd that requires a client's certificate and a secret, and what its Reader is given."""

    directory: Path
    auth: AuthServer
    nsqd: Running
    seen: list[bytes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    #: What ``auth_secret`` and ``server_hostname`` return, or raise.
    secret: Any = "good"
    name: Any = "127.0.0.1"

    def write(self, name: str, content: bytes | None) -> None:
        """Replace one of the files; None removes it."""
        path = self.directory / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    def half(self, name: str) -> None:
        content = (self.directory / name).read_bytes()
        self.write(name, content[: len(content) // 2])

    def options(self) -> dict[str, Any]:
        def give(what: str) -> Any:
            value = getattr(self, what)
            if isinstance(value, Exception):
                raise value
            return value

        def on_error(_: str, error: NSQError) -> None:
            self.errors.append(str(error))

        return {
            "tls_v1": True,
            "tls_root_ca_file": str(self.directory / "ca.pem"),
            "tls_cert": str(self.directory / "mine.pem"),
            "tls_key": str(self.directory / "mine.key"),
            "server_hostname": lambda _: give("name"),
            "auth_secret": lambda: give("secret"),
            "max_redial_delay": 0.05,
            "on_error": on_error,
        }

    def publish(self, body: bytes) -> None:
        with NsqdHTTPClient(self.nsqd.http_address) as client:
            client.publish("t", body)


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    kind: Kind = request.param
    ca = write_ca(tmp_path)
    cert, key = write_certificate(tmp_path)
    for name, source in (("mine.pem", cert), ("mine.key", key), ("clients.pem", ca)):
        (tmp_path / name).write_bytes(Path(source).read_bytes())
    with (
        running_auth_server(good="bob") as auth,
        running_nsqd(
            kind,
            tls_cert=cert,
            tls_key=key,
            tls_client_auth_policy="require-verify",
            tls_root_ca_file=str(tmp_path / "clients.pem"),
            tls_required="tcp-https",
            auth_http_addresses=(auth.address,),
        ) as nsqd,
    ):
        yield Scene(tmp_path, auth, nsqd)


def not_yet_valid(scene: Scene) -> None:
    leaf = authority().issue_cert("127.0.0.1", not_before=LATER, not_after=LATER.replace(year=2101))
    scene.write("cert.pem", leaf.cert_chain_pems[0].bytes())
    scene.write("key.pem", leaf.private_key_pem.bytes())


def of_another_authority(scene: Scene) -> None:
    leaf = stranger().issue_cert("127.0.0.1")
    scene.write("cert.pem", leaf.cert_chain_pems[0].bytes())
    scene.write("key.pem", leaf.private_key_pem.bytes())


#: What goes wrong, and a piece of the error.
TROUBLES: dict[str, tuple[Callable[[Scene], object], str]] = {
    "nsqd's certificate has expired": (lambda scene: write_certificate(scene.directory, expired=True), "has expired"),
    "nsqd's certificate is not valid yet": (not_yet_valid, "not valid yet"),
    "nsqd's certificate has another name": (
        lambda scene: write_certificate(scene.directory, "nsqd.example"),
        "not for this host",
    ),
    "nsqd's certificate is of another authority": (of_another_authority, "issuer is unknown"),
    "nsqd does not know the client's authority": (
        lambda scene: scene.write("clients.pem", stranger().cert_pem.bytes()),
        "the peer refused",
    ),
    "CA file absent": (lambda scene: scene.write("ca.pem", None), "cannot use tls_root_ca_file="),
    "CA file empty": (lambda scene: scene.write("ca.pem", b""), "cannot use tls_root_ca_file="),
    "CA file half written": (lambda scene: scene.half("ca.pem"), "cannot use tls_root_ca_file="),
    "certificate half written": (lambda scene: scene.half("mine.pem"), "cannot use tls_cert="),
    "key absent": (lambda scene: scene.write("mine.key", None), "cannot use tls_cert="),
    "key of another certificate": (
        lambda scene: scene.write("mine.key", authority().issue_cert("x").private_key_pem.bytes()),
        "cannot use tls_cert=",
    ),
    "name raises": (lambda scene: setattr(scene, "name", OSError("meant")), "server_hostname.* raised OSError"),
    "name absent": (lambda scene: setattr(scene, "name", ""), "not a name"),
    "name malformed": (lambda scene: setattr(scene, "name", "a..b"), "cannot start TLS"),
    "secret raises": (lambda scene: setattr(scene, "secret", OSError("meant")), r"auth_secret\(\) raised OSError"),
    "secret absent": (lambda scene: setattr(scene, "secret", None), "returned NoneType"),
    "secret empty": (lambda scene: setattr(scene, "secret", ""), "must not be empty"),
    "secret unknown": (lambda scene: scene.auth.identities.clear(), "E_AUTH_FAILED"),
    "nothing allowed": (lambda scene: setattr(scene.auth, "topics", "^other$"), "E_UNAUTHORIZED"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_reader_outlives_a_trouble_that_passes(scene: Scene, trouble: str) -> None:
    break_it, text = TROUBLES[trouble]
    files = {path.name: path.read_bytes() for path in scene.directory.glob("*.*")}

    def handle(message: Message) -> None:
        scene.seen.append(message.body)

    with Reader("t", "c", handle, nsqd_tcp_addresses=scene.nsqd.tcp_address, **scene.options()) as reader:
        scene.publish(b"before")
        wait_for(lambda: scene.seen)
        scene.nsqd.stop()
        break_it(scene)
        scene.nsqd.start()
        wait_for(lambda: any(re.search(text, each) for each in scene.errors))
        assert reader.stats()["state"] == "running"

        for name, content in files.items():
            scene.write(name, content)
        scene.secret, scene.name = "good", "127.0.0.1"
        scene.auth.identities["good"], scene.auth.topics = "bob", ".*"
        scene.nsqd.stop()
        scene.nsqd.start()
        scene.publish(b"after")
        wait_for(lambda: b"after" in scene.seen)


def test_a_feature_that_is_taken_away_ends_it_all_the_same(scene: Scene) -> None:
    with running_nsqd() as plain, FaultProxy(scene.nsqd.tcp_address) as proxy:
        reader = Reader("t", "c", print, nsqd_tcp_addresses=proxy.address, **scene.options())
        running = gevent.spawn(reader.run)
        wait_for(lambda: reader.stats()["connections"])
        proxy.target = plain.tcp_address
        proxy.cut()
        with pytest.raises(ConnectionFailed, match="tls_v1: nsqd does not offer it"):
            running.get(timeout=100)
