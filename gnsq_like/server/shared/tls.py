"""The daemons' TLS: contexts from nsqd's options, the handshake, and names as in /stats.

The context for clients is gevent's: its ``wrap_socket`` lets other greenlets run even where nothing is patched. That
for auth servers is one of ssl, because they are asked in native threads there.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

import gevent
from gevent.ssl import SSLContext

from gnsq_like.errors import InvalidOption, TLSError
from gnsq_like.server.daemon_options import TLS_VERSIONS, NsqdOptions
from gnsq_like.server.shared.connection import Connection
from gnsq_like.transport.tls import Tls

#: Seconds for a handshake, as nsqd has it.
HANDSHAKE_TIMEOUT = 5.0
#: The first byte of a TLS record of type alert or handshake.
_FIRST_BYTES = (0x15, 0x16)


def server_context(options: NsqdOptions) -> ssl.SSLContext | None:
    """The context for clients; None without a certificate.

    :raises InvalidOption: if a file cannot be read or used
    """
    if not options.tls_cert:
        return None
    context: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion(TLS_VERSIONS[options.tls_min_version])
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except OSError as exc:
        raise _unfit("tls_cert", f"{options.tls_cert}, {options.tls_key}", exc) from exc
    if options.tls_client_auth_policy:
        _load_cas(context, options, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: NsqdOptions) -> ssl.SSLContext:
    """The context for auth servers over https, whose certificates are verified.

    :raises InvalidOption: if the file of CAs cannot be read or used
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion(TLS_VERSIONS[options.tls_min_version])
    _load_cas(context, options, ssl.Purpose.SERVER_AUTH)
    return context


def _load_cas(context: ssl.SSLContext, options: NsqdOptions, purpose: ssl.Purpose) -> None:
    if not options.tls_root_ca_file:
        context.load_default_certs(purpose)
        return
    try:
        context.load_verify_locations(options.tls_root_ca_file)
    except OSError as exc:
        raise _unfit("tls_root_ca_file", options.tls_root_ca_file, exc) from exc


def _unfit(option: str, path: str, exc: OSError) -> InvalidOption:
    what = getattr(exc, "reason", None) or exc.strerror or str(exc)
    return InvalidOption(option, path, f"failed to build TLS config - {what}")


def common_name(certificate: Mapping[str, Any]) -> str:
    """The subject's common name; empty if it has none."""
    found = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return str(found[-1]) if found else ""


def version_name(version: str) -> str:
    """A version as in /stats: "TLS1.3" for "TLSv1.3"."""
    return version.replace("TLSv", "TLS")


def cipher_name(name: str) -> str:
    """The standard's name of a cipher suite, as in /stats, from OpenSSL's."""
    parts = re.fullmatch(r"(ECDHE|DHE)-(RSA|ECDSA|DSS)-(.+)", name)
    if parts is None:
        return name  # of TLS 1.3, where OpenSSL uses the standard's names
    cipher = re.sub(r"AES(128|256)-(?=SHA)", r"AES\1-CBC-", parts[3])
    cipher = re.sub(r"AES(128|256)", r"AES_\1", cipher).replace("-", "_")
    if cipher.endswith("POLY1305"):
        cipher += "_SHA256"
    return f"TLS_{parts[1]}_{parts[2]}_WITH_{cipher}"


class HandshakeFailed(Exception):
    """The handshake failed; the text is for the client."""


def shake_hands(connection: Connection, context: ssl.SSLContext) -> Tls:
    """Make a TLS handshake over the connection's socket. Switches.

    :raises HandshakeFailed: TLS's alert, if there is one, has been written then
    """
    tls = Tls(context, server_side=True)
    try:
        with gevent.Timeout(HANDSHAKE_TIMEOUT, TimeoutError):
            received = connection.receive_wire()
            if received[0] not in _FIRST_BYTES:
                raise HandshakeFailed("tls: first record does not look like a TLS handshake")
            while not tls.handshake(received):
                connection.output.write_wire(tls.take_output())
                received = connection.receive_wire()
    except TLSError as exc:
        raise HandshakeFailed(f"tls: {exc.detail}") from exc
    except TimeoutError:
        raise HandshakeFailed("i/o timeout") from None
    except EOFError:
        raise HandshakeFailed("EOF") from None
    finally:
        connection.output.write_wire(tls.take_output())
    return tls
