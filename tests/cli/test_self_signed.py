"""gnsq-like nsqd --tls-self-signed: the certificate, and an nsqd that has it."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from cryptography import x509

from gnsq_like import Producer
from gnsq_like.cli.self_signed import SelfSigned, how_to_trust, names_for, self_signed
from gnsq_like.http.nsqd import NsqdHTTPClient
from gnsq_like.server.daemon_process import DaemonProcess
from gnsq_like.transport.tls import Tls
from tests.support.commands import gnsq_like, gnsq_like_without


def names_of(made: SelfSigned) -> set[str]:
    certificate = x509.load_pem_x509_certificate(made.cert.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_the_names_of_an_nsqd() -> None:
    names = names_for("nsqd.example.net", "0.0.0.0", "", "::", "10.0.0.1", "localhost")
    assert names[:3] == ["localhost", "127.0.0.1", "::1"]
    assert names[4:] == ["nsqd.example.net", "10.0.0.1"]


def test_it_is_no_authority_and_only_the_owner_reads_the_key(tmp_path: Path) -> None:
    made = self_signed(tmp_path, ["localhost", "::1"])
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tls-cert.pem", "tls-key.pem"]
    assert b"PRIVATE" not in made.cert.read_bytes()
    assert names_of(made) == {"localhost", "::1"}
    certificate = x509.load_pem_x509_certificate(made.cert.read_bytes())
    assert certificate.not_valid_after_utc - datetime.now(UTC) < timedelta(days=366)
    # A client that trusts it trusts no other certificate because of it.
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_it_is_made_once_for_the_same_names(tmp_path: Path) -> None:
    first = self_signed(tmp_path, ["localhost", "127.0.0.1"]).cert.read_bytes()
    assert self_signed(tmp_path, ["127.0.0.1"]).cert.read_bytes() == first
    made = self_signed(tmp_path, ["127.0.0.1", "example.net"])
    assert made.cert.read_bytes() != first
    assert names_of(made) == {"127.0.0.1", "example.net"}


@pytest.mark.parametrize("damage", [b"", b"no PEM"])
def test_a_damaged_certificate_is_replaced(tmp_path: Path, damage: bytes) -> None:
    made = self_signed(tmp_path, ["localhost"])
    made.cert.write_bytes(damage)
    assert names_of(self_signed(tmp_path, ["localhost"])) == {"localhost"}


def test_the_strictest_client_accepts_it(tmp_path: Path) -> None:
    made = self_signed(tmp_path, ["localhost"])
    context = ssl.create_default_context(cafile=str(made.cert))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(made.cert, made.key)
    client, server = Tls(context, server_hostname="localhost"), Tls(server_context, server_side=True)
    client.handshake()
    server.handshake(client.take_output())
    assert client.handshake(server.take_output())
    assert server.handshake(client.take_output())


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(click.ClickException, match="cannot write to"):
        self_signed(tmp_path / "file", ["localhost"])


def test_what_is_said_can_be_copied(tmp_path: Path) -> None:
    text = how_to_trust(self_signed(tmp_path, ["localhost"]), ["localhost"])
    assert f'tls_v1=True, tls_root_ca_file="{tmp_path}/tls-cert.pem"' in text
    assert f"--producer-opt=tls_root_ca_file,{tmp_path}/tls-cert.pem" in text


def test_clients_trust_the_nsqd_by_the_file_it_names(tmp_path: Path) -> None:
    flags = [f"--{name}-address=127.0.0.1:0" for name in ("tcp", "http", "https")]
    flags += ["--tls-self-signed", "--tls-required", f"--data-path={tmp_path}"]
    nsqd = DaemonProcess("nsqd", ["nsqd", *flags], listens=["TCP", "HTTPS"])
    nsqd.start()
    try:
        nsqd.wait_until_listening()
        ca_file = str(tmp_path / "tls-cert.pem")
        assert f'tls_root_ca_file="{ca_file}"' in nsqd.log
        with Producer(nsqd.tcp_address, tls_v1=True, tls_root_ca_file=ca_file) as producer:
            producer.publish("t", b"a")
        with NsqdHTTPClient(f"https://{nsqd.https_address}", verify=ca_file) as http:
            assert http.stats(topic="t")["topics"][0]["depth"] == 1
    finally:
        nsqd.end(0)


def test_without_cryptography_one_line_says_what_to_install(tmp_path: Path) -> None:
    done = gnsq_like_without("cryptography", "nsqd", "--tls-self-signed", f"--data-path={tmp_path}")
    assert done.returncode == 1
    assert 'pip install "gnsq-like[self-signed]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_it_is_instead_of_other_certificates(tmp_path: Path) -> None:
    done = gnsq_like("nsqd", "--tls-self-signed", "--tls-cert=x", "--tls-key=y", cwd=tmp_path)
    assert done.returncode == 2
    assert "leave --tls-cert and --tls-key out" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tls-cert.pem", "tls-key.pem"])
def test_a_certificate_that_others_may_have_put_there_is_refused(name: str, tmp_path: Path) -> None:
    self_signed(tmp_path / "theirs", ["localhost"])
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "shared" / name).symlink_to(tmp_path / "theirs" / name)
    with pytest.raises(click.ClickException, match="not a regular file"):
        self_signed(tmp_path / "shared", ["localhost"])
