"""A certificate for development: ``gnsq-like nsqd --tls-self-signed``.

It is signed with its own key and is no authority: a client that trusts it trusts this nsqd and nothing else. In a
directory that stays it is used again while it is valid and carries all the names, so clients need to be given it
only once.

Needs the extra ``tls``: catch the ModuleNotFoundError of importing this.
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
from cryptography.x509.oid import NameOID

from gnsq_like.durable_file import replace_file
from gnsq_like.own_files import check_own

_VALID = timedelta(days=365)
#: A certificate that is valid for less is replaced.
_LEAST_VALID = timedelta(days=1)


class SelfSigned(NamedTuple):
    """Paths of PEM files."""

    #: The file that clients trust.
    cert: Path
    #: Readable for its owner alone.
    key: Path


def names_for(*addresses: str) -> list[str]:
    """The names of an nsqd on this machine: the loopback ones, the host's, and these if they are not empty."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *addresses]
    return list(dict.fromkeys(name for name in names if name and name not in ("0.0.0.0", "::")))


def self_signed(directory: Path, names: Iterable[str]) -> SelfSigned:
    """The certificate in ``directory``, if it is for all of these names; otherwise a new one.

    :param names: host names and IP addresses
    :raises click.ClickException: if the directory cannot be written to
    """
    found = SelfSigned(directory / "tls-cert.pem", directory / "tls-key.pem")
    wanted = set(names)
    try:
        for path in found:
            check_own(str(path))
        if not _fits(found, wanted):
            directory.mkdir(parents=True, exist_ok=True)
            _make(found, wanted)
    except OSError as exc:
        raise click.ClickException(f"--tls-self-signed cannot write to {directory}: {exc.strerror or exc}") from None
    return found


def _fits(found: SelfSigned, wanted: set[str]) -> bool:
    with suppress(FileNotFoundError, ValueError, x509.ExtensionNotFound):
        certificate = x509.load_pem_x509_certificate(found.cert.read_bytes())
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        is_for_all = {str(name.value) for name in known} >= wanted
        return found.key.exists() and is_for_all and certificate.not_valid_after_utc > datetime.now(UTC) + _LEAST_VALID
    return False


def _make(paths: SelfSigned, names: set[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gnsq-like nsqd on {socket.gethostname()}"[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)]), critical=False)
        .sign(key, SHA256())
    )
    for path in paths:
        path.unlink(missing_ok=True)
    with os.fdopen(os.open(paths.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    replace_file(paths.cert, certificate.public_bytes(Encoding.PEM), mode=0o644)  # last: without it both are made anew


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def how_to_trust(made: SelfSigned, names: Iterable[str]) -> str:
    """The lines to copy into clients."""
    return f"""TLS with a self-signed certificate for {", ".join(names)}. Clients trust it by its file:
  gnsq_like      Reader(..., tls_v1=True, tls_root_ca_file="{made.cert}"), Producer alike
  to_nsq         --producer-opt=tls_v1,true --producer-opt=tls_root_ca_file,{made.cert}
  nsq_tail       --consumer-opt=tls_v1,true --consumer-opt=tls_root_ca_file,{made.cert}
  HTTPS          curl --cacert {made.cert} https://..."""
