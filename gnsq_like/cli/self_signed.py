"""A certificate for development: ``gnsq-like nsqd --tls-self-signed``.

An authority is made, signs one certificate and is forgotten: its key is written nowhere, so whoever trusts
its certificate trusts this nsqd and nothing else. In a directory that stays, they are made once and used
again while they are valid and carry all the names; clients need to be told only once then.

Needs the extra ``tls``; so whoever imports this says what is missing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import click
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = timedelta(days=365)
#: Those that are not valid for so long any more are made anew.
_LEAST_VALID = timedelta(days=1)


class SelfSigned(NamedTuple):
    """Paths of PEM files."""

    #: What clients trust.
    ca_file: Path
    cert: Path
    #: Readable for its owner alone.
    key: Path


def names_for(*addresses: str) -> list[str]:
    """What an nsqd here is called: on this machine, by its name, and by these hosts or addresses; empty ones go."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *addresses]
    return list(dict.fromkeys(name for name in names if name and name not in ("0.0.0.0", "::")))


def self_signed(directory: Path, names: Iterable[str]) -> SelfSigned:
    """The certificate in ``directory``, made if there is none that fits.

    :param names: host names and IP addresses that it is to be for
    :raises click.ClickException: if the directory cannot be written to
    """
    found = SelfSigned(directory / "tls-ca.pem", directory / "tls-cert.pem", directory / "tls-key.pem")
    wanted = set(names)
    try:
        if not _fits(found, wanted):
            directory.mkdir(parents=True, exist_ok=True)
            _make(found, wanted)
    except OSError as exc:
        raise click.ClickException(f"--tls-self-signed cannot write to {directory}: {exc.strerror or exc}") from None
    return found


def _fits(found: SelfSigned, wanted: set[str]) -> bool:
    if not all(path.exists() for path in found):
        return False
    with suppress(ValueError, x509.ExtensionNotFound):
        certificate = x509.load_pem_x509_certificate(found.cert.read_bytes())
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = {str(name.value) for name in known}
        return names >= wanted and certificate.not_valid_after_utc > datetime.now(UTC) + _LEAST_VALID
    return False


def _make(paths: SelfSigned, names: set[str]) -> None:
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = _name(f"gnsq-like nsqd on {socket.gethostname()}")
    ca = _certificate(ca_name, ca_name, ca_key, ca_key, [], is_ca=True)
    general = [_general_name(name) for name in sorted(names)]
    leaf = _certificate(_name("nsqd"), ca_name, key, ca_key, general, is_ca=False)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for path in paths:
        path.unlink(missing_ok=True)
    with os.fdopen(os.open(paths.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    paths.ca_file.write_bytes(ca.public_bytes(Encoding.PEM))
    paths.cert.write_bytes(leaf.public_bytes(Encoding.PEM))  # last: without it all are made anew


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: list[x509.GeneralName],
    *,
    is_ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_ca:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(issuer_key, SHA256())


def how_to_trust(made: SelfSigned, names: Iterable[str]) -> str:
    """What the user is told."""
    return f"""TLS with a certificate made here, for {", ".join(names)}. Clients trust it by its CA's file:
  gnsq_like      Reader(..., tls_v1=True, tls_root_ca_file="{made.ca_file}"), Producer alike
  to_nsq         --producer-opt=tls_v1,true --producer-opt=tls_root_ca_file,{made.ca_file}
  nsq_tail       --consumer-opt=tls_v1,true --consumer-opt=tls_root_ca_file,{made.ca_file}
  HTTPS          curl --cacert {made.ca_file} https://..."""
