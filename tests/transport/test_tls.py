"""TLS without a socket: both ends are ours, and the bytes between them are the test's."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import NegotiationFailed, ProtocolError, TLSError
from gnsq_like.transport.tls import Tls
from gnsq_like.transport.tls import client_context as options_context
from tests.support.certificates import (
    authority,
    certificate,
    client_context,
    server_context,
    stranger,
    write_ca,
    write_certificate,
)

NAME = "127.0.0.1"
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def whole(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def shake_hands(client: Tls, server: Tls, split: Callable[[bytes], list[bytes]] = whole) -> None:
    """Until both are done and nothing is on the way."""
    done = {client: client.handshake(), server: False}
    while any([flow(client, server, done, split), flow(server, client, done, split)]):
        pass
    assert all(done.values())


def flow(source: Tls, target: Tls, done: dict[Tls, bool], split: Callable[[bytes], list[bytes]]) -> bool:
    data = source.take_output()
    for piece in split(data):
        if done[target]:
            assert target.decrypt(piece) == b""  # session tickets
        else:
            done[target] = target.handshake(piece)
    return bool(data)


def pair(server: ssl.SSLContext | None = None, client: ssl.SSLContext | None = None, name: str = NAME) -> list[Tls]:
    return [Tls(client or client_context(), server_hostname=name), Tls(server or server_context(), server_side=True)]


def everything(tls: Tls, data: bytes, max_bytes: int = 65536) -> bytes:
    pieces = [tls.decrypt(data, max_bytes)]
    while tls.pending:
        pieces.append(tls.decrypt(b"", max_bytes))
    assert all(len(piece) <= max_bytes for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("split", [whole, byte_by_byte])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_connection_from_hello_to_goodbye(version: ssl.TLSVersion, split: Callable[[bytes], list[bytes]]) -> None:
    context = server_context()
    context.maximum_version = version
    client, server = pair(context)
    shake_hands(client, server, split)
    assert client.version == server.version == version.name.replace("_", ".")
    assert client.cipher
    assert ("IP Address", NAME) in client.peer_certificate["subjectAltName"]  # type: ignore[operator]
    long = bytes(range(256)) * (1000 if split is whole else 100)  # more than a record of TLS
    for data in (b"x", long, b"", memoryview(b"last")):
        assert b"".join(everything(server, each) for each in split(client.encrypt(data))) == data
        assert b"".join(everything(client, each) for each in split(server.encrypt(data))) == data
    assert everything(server, client.encrypt(b"bye") + client.close()) == b"bye"
    assert server.ended
    assert everything(client, server.close()) == b""
    assert client.ended


@pytest.mark.parametrize("version", VERSIONS)
def test_data_behind_the_handshake_is_not_lost(version: ssl.TLSVersion) -> None:
    context = server_context()
    context.maximum_version = version
    client, server = pair(context)
    client.handshake()
    server.handshake(client.take_output())
    done = client.handshake(server.take_output())
    if not done:  # TLS 1.2 takes one round more
        assert server.handshake(client.take_output())
        assert client.handshake(server.take_output() + server.encrypt(b"early"))
    else:
        assert server.handshake(client.take_output() + client.encrypt(b"early"))
        assert everything(server, b"") == b"early"
        assert client.decrypt(server.take_output() + server.encrypt(b"early")) == b"early"
        return
    assert client.pending
    assert everything(client, b"") == b"early"


def fault(client: Tls, server: Tls) -> TLSError:
    with pytest.raises(TLSError) as caught:
        shake_hands(client, server)
    return caught.value


def test_the_server_hears_why() -> None:
    client, server = pair(client=client_context(stranger()))
    assert fault(client, server).kind == "unknown_ca"
    with pytest.raises(TLSError, match="unknown ca") as caught:
        server.handshake(client.take_output())
    assert caught.value.kind == "refused"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_requires_a_certificate(version: ssl.TLSVersion) -> None:
    context = server_context(client_certificates=True)
    context.maximum_version = version
    client, server = pair(context)
    error = fault(client, server)
    assert "did not return a certificate" in str(error)
    with pytest.raises(TLSError) as caught:
        (client.decrypt if version is ssl.TLSVersion.TLSv1_3 else client.handshake)(server.take_output())
    assert caught.value.kind == "refused"
    assert "tls_cert=" in str(caught.value)

    willing = client_context()
    certificate("client.example").configure_cert(willing)
    client, server = pair(context, willing)
    shake_hands(client, server)
    assert ("DNS", "client.example") in server.peer_certificate["subjectAltName"]  # type: ignore[operator]


def test_no_common_version() -> None:
    context = server_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    mine = client_context()
    mine.minimum_version = ssl.TLSVersion.TLSv1_3
    client, server = pair(context, mine)
    assert fault(client, server).kind == "version"
    with pytest.raises(TLSError) as caught:
        client.handshake(server.take_output())
    assert caught.value.kind == "version"


@pytest.mark.parametrize("name", ["", ".", "a..b", "a\0b", "x" * 64 + ".example"])
def test_a_name_that_cannot_be_one(name: str) -> None:
    with pytest.raises(TLSError):
        Tls(client_context(), server_hostname=name).handshake()


def test_what_is_not_tls() -> None:
    for junk in (b"\x00\x00\x00\x06\x00\x00\x00\x00OK", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        client = pair()[0]
        client.handshake()
        assert client.take_output()
        with pytest.raises(TLSError) as caught:
            client.handshake(junk)
        assert caught.value.kind == "not_tls"
        with pytest.raises(TLSError) as again:
            client.handshake()
        assert again.value is caught.value
        assert client.close() == b""  # no close_notify where nothing was agreed


@given(pieces=st.lists(st.binary(max_size=100), max_size=4))
def test_random_bytes_in_the_handshake(pieces: list[bytes]) -> None:
    for tls in pair():
        try:
            tls.handshake()
            for piece in pieces:
                tls.handshake(piece)
        except ProtocolError as exc:
            assert isinstance(exc, TLSError)


CONTEXTS = server_context(), client_context()


@given(at=st.integers(0, 5000), mask=st.integers(1, 255))
def test_a_changed_byte_in_the_handshake(at: int, mask: int) -> None:
    client, server = pair(*CONTEXTS)
    client.handshake()
    hello = client.take_output()
    server.handshake(hello)
    answer = bytearray(server.take_output())
    answer[at % len(answer)] ^= mask
    try:
        client.handshake(bytes(answer))
    except ProtocolError as exc:
        assert isinstance(exc, TLSError)


@given(data=st.binary(min_size=1, max_size=500), at=st.integers(0), mask=st.integers(1, 255), cut=st.integers(0))
def test_a_changed_or_missing_byte_of_data(data: bytes, at: int, mask: int, cut: int) -> None:
    client, server = pair(*CONTEXTS)
    shake_hands(client, server)
    wire = bytearray(server.encrypt(data))
    assert client.decrypt(bytes(wire[: cut % len(wire)])) == b""
    client, server = pair(*CONTEXTS)
    shake_hands(client, server)
    wire = bytearray(server.encrypt(data))
    wire[at % len(wire)] ^= mask
    # A longer length makes it wait for more; anything else is seen.
    try:
        assert client.decrypt(bytes(wire)) == b""
    except ProtocolError as exc:
        assert isinstance(exc, TLSError)


def test_one_context_for_the_same_files_until_one_changes(tmp_path: Path) -> None:
    ca, (cert, key) = write_ca(tmp_path), write_certificate(tmp_path)
    first = options_context(ca, cert, key, True)
    assert options_context(ca, cert, key, True) is first
    assert first.minimum_version is ssl.TLSVersion.TLSv1_2
    assert first.check_hostname
    unchecked = options_context(ca, cert, key, False)
    assert unchecked is not first
    assert unchecked.verify_mode is ssl.CERT_NONE
    Path(ca).write_bytes(b"".join(each.cert_pem.bytes() for each in (authority(), stranger())))
    renewed = options_context(ca, cert, key, True)
    assert renewed is not first
    assert len(renewed.get_ca_certs()) == 2
    for path in (cert, key):
        os.utime(path, (0, 0))
        again = options_context(ca, cert, key, True)
        assert again is not renewed
        renewed = again


def test_the_systems_certificates_are_read_again_when_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    client, server = pair(client=options_context(None, None, None, True))
    with pytest.raises(TLSError, match="issuer is unknown"):
        shake_hands(client, server)
    write_ca(tmp_path)
    context = options_context(None, None, None, True)
    client, server = pair(client=context)
    shake_hands(client, server)
    assert options_context(None, None, None, True) is context


def test_an_encrypted_key_is_an_error_and_no_question_on_the_terminal(tmp_path: Path) -> None:
    cert, key_file = write_certificate(tmp_path)
    key = serialization.load_pem_private_key(Path(key_file).read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    Path(key_file).write_bytes(encrypted)
    with pytest.raises(NegotiationFailed, match=r"encrypted.*ssl_context"):
        options_context(None, cert, key_file, True)
