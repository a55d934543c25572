"""nsqd's options for TLS, codecs and AUTH: what is refused, when, and in which words (docs/internals 7.1)."""

import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.server import Nsqd, NsqdOptions
from gnsq_like.server.nsqd.auth_servers import Applicant, AuthFailed, AuthServers
from gnsq_like.server.shared.tls import cipher_name, client_context, server_context
from tests.support.certificates import write_ca, write_certificate
from tests.support.daemons import Kind

FREE = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    cert, key = write_certificate(tmp_path)
    return {"tls_cert": cert, "tls_key": key}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_deflate_level": 0}, r"--max-deflate-level must be \[1,9\]"),
        ({"max_deflate_level": 10}, r"--max-deflate-level must be \[1,9\]"),
        ({"tls_required": True}, "cannot require TLS client connections without TLS key and cert"),
        ({"tls_required": "tcp-https"}, "cannot require TLS client connections without TLS key and cert"),
        (
            {"tls_client_auth_policy": "require-verify"},
            "cannot require TLS client connections without TLS key and cert",
        ),
        ({"tls_cert": "x"}, "tls_key is missing"),
        ({"tls_key": "x"}, "tls_cert is missing"),
        ({"tls_required": "yes"}, "it must be one of false, tcp-https, true"),
        ({"tls_client_auth_policy": "ask"}, "it must be require or require-verify"),
        ({"tls_min_version": "tls1.0"}, "it must be one of tls1.2, tls1.3: Python's ssl has no older ones"),
        ({"tls_cert": "x", "tls_key": "y", "tls_client_auth_policy": "require"}, "give tls_root_ca_file"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        NsqdOptions(**options)


def test_a_policy_for_client_certificates_requires_tls(files: dict[str, Any]) -> None:
    assert NsqdOptions(tls_client_auth_policy="require-verify", **files).tls_required == "true"
    options = NsqdOptions(tls_client_auth_policy="require-verify", tls_required="tcp-https", **files)
    assert options.tls_required == "tcp-https"
    assert NsqdOptions(**files | {"tls_required": True}).tls_required == "true"
    assert NsqdOptions().tls_required == "false"


@pytest.mark.parametrize("wrong", ["tls_cert", "tls_key", "tls_root_ca_file"])
@pytest.mark.parametrize("content", [None, b"no PEM"])
def test_files_that_are_not_what_they_should_be(
    files: dict[str, Any], tmp_path: Path, wrong: str, content: bytes | None
) -> None:
    options = files | {"tls_root_ca_file": write_ca(tmp_path), "tls_client_auth_policy": "require-verify"}
    if content is None:
        Path(options[wrong]).unlink()
    else:
        Path(options[wrong]).write_bytes(content)
    nsqd = Nsqd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", https_address="127.0.0.1:0", **options)
    with pytest.raises(InvalidOption, match=f"{options[wrong]}.*failed to build TLS config - "):
        nsqd.start()
    assert not nsqd.is_running


@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--max-deflate-level=10", "--max-deflate-level must be [1,9]"),
        ("--tls-required", "cannot require TLS client connections without TLS key and cert"),
        ("--tls-cert=/no/such/file", "failed to build TLS config - "),
    ],
)
def test_a_start_that_fails_says_why(kind: Kind, flag: str, text: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gnsq_like", "nsqd"] if kind == "process" else [shutil.which("nsqd") or ""]
    done = subprocess.run(
        [*command, *FREE, flag, f"--data-path={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_contexts(files: dict[str, Any], tmp_path: Path) -> None:
    assert server_context(NsqdOptions()) is None
    options = NsqdOptions(tls_min_version="tls1.3", **files)
    plain = server_context(options)
    assert plain is not None
    assert (plain.verify_mode, plain.minimum_version) == (ssl.CERT_NONE, ssl.TLSVersion.TLSv1_3)
    asking = client_context(NsqdOptions(tls_root_ca_file=write_ca(tmp_path)))
    assert (asking.verify_mode, asking.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert asking.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(asking.get_ca_certs()) == 1
    by_the_system = server_context(NsqdOptions(tls_client_auth_policy="require-verify", **files))
    assert by_the_system is not None and by_the_system.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("openssl", "name"),
    [
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES256-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"),
        ("ECDHE-RSA-AES128-SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ],
)
def test_cipher_suites_by_the_standards_name(openssl: str, name: str) -> None:
    assert cipher_name(openssl) == name


def test_auth_servers_begin_with_any_and_the_secret_is_not_shown() -> None:
    applicant = Applicant("a name", "::1", b"s3 cret&", False)
    assert "s3" not in repr(applicant)
    assert applicant.query() == "common_name=a+name&remote_ip=%3A%3A1&secret=s3+cret%26&tls=false"
    addresses = ("ftp://a", "ftp://b", "ftp://c")
    for drawn, order in ((0.0, "abc"), (0.4, "bca"), (0.99, "cab")):
        options = NsqdOptions(auth_http_addresses=addresses)
        servers = AuthServers(options, client_context(options), random=iter([drawn]).__next__)
        with pytest.raises(AuthFailed, match=" - .*; .*".join(f"ftp://{letter}" for letter in order)) as caught:
            servers.ask(applicant)
        assert "s3" not in str(caught.value)
