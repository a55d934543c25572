"""Certificates for tests, made once a run: an authority that nsqd and client trust, and one that nobody knows."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import trustme


@cache
def authority() -> trustme.CA:
    return trustme.CA()


@cache
def stranger() -> trustme.CA:
    return trustme.CA()


@cache
def certificate(*names: str, expired: bool = False) -> trustme.LeafCert:
    """Of :func:`authority`, for these names or addresses; "127.0.0.1" if none is given."""
    return authority().issue_cert(
        *(names or ("127.0.0.1",)),
        common_name=names[0] if names else "127.0.0.1",
        not_after=datetime(2001, 1, 1, tzinfo=UTC) if expired else None,
    )


def server_context(*names: str, expired: bool = False, client_certificates: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate(*names, expired=expired).configure_cert(context)
    if client_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        authority().configure_trust(context)
    return context


def client_context(ca: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    (ca or authority()).configure_trust(context)
    return context


def write_ca(directory: Path, ca: trustme.CA | None = None) -> str:
    """A file for tls_root_ca_file or nsqd's --tls-root-ca-file."""
    path = directory / "ca.pem"
    (ca or authority()).cert_pem.write_to_path(path)
    return str(path)


def write_certificate(directory: Path, *names: str, expired: bool = False) -> tuple[str, str]:
    """Files for --tls-cert and --tls-key, or tls_cert and tls_key."""
    leaf = certificate(*names, expired=expired)
    cert_path, key_path = directory / "cert.pem", directory / "key.pem"
    cert_path.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(key_path)
    return str(cert_path), str(key_path)
