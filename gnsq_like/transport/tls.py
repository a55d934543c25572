"""TLS as bytes to bytes, over ``SSLContext.wrap_bio``: no socket, so any context works, patched or not.

One object serves one connection, as client or server::

    tls = Tls(context, server_hostname="nsqd.example")          # or Tls(context, server_side=True)
    while not tls.handshake(received):                          # b"" at first; then what came from the peer
        send(tls.take_output()); received = ...
    send(tls.take_output())                                     # the handshake's last bytes, if any
    wire = tls.encrypt(data)                                    # to be written whole, in this order
    piece = tls.decrypt(received)                               # what it holds; then, while tls.pending:
    piece = tls.decrypt()
    send(tls.close())                                           # close_notify

Bytes of the application that came with the handshake's last ones are given by the first ``decrypt()``.
After a TLSError the object refuses to go on, but ``take_output`` gives the alert that tells the peer why.

Rules for editors: this module imports ssl, so it is imported where TLS begins and not before (docs/internals, TLS).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from gnsq_like.errors import NegotiationFailed, TLSError
from gnsq_like.transport.compression import PIECE_BYTES

_T = TypeVar("_T")

#: OpenSSL's X509_V_ERR_ codes that have a word of ours: what is wrong with the peer's certificate.
_CERTIFICATE_FAULTS = {
    9: "not_yet_valid",
    10: "expired",
    18: "unknown_ca",
    19: "unknown_ca",
    20: "unknown_ca",
    21: "unknown_ca",
    62: "wrong_hostname",
    64: "wrong_hostname",
}
#: OpenSSL's reasons that mean: these bytes are no TLS, or of no version that both have.
_NO_COMMON_GROUND = {
    "WRONG_VERSION_NUMBER": "not_tls",
    "HTTP_REQUEST": "not_tls",
    "PACKET_LENGTH_TOO_LONG": "not_tls",
    "RECORD_LAYER_FAILURE": "not_tls",
    "UNSUPPORTED_PROTOCOL": "version",
    "TLSV1_ALERT_PROTOCOL_VERSION": "version",
    "NO_PROTOCOLS_AVAILABLE": "version",
}


class Tls:
    """One connection's TLS.

    :param context: an ``ssl.SSLContext``
    :param server_side: whether this end is the server
    :param server_hostname: for a client: the name that the server's certificate must carry, and SNI
    """

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._error: TLSError | None = None
        self._done = False
        #: Whether ``decrypt()`` may give more without more input.
        self.pending = False
        #: Whether the peer said close_notify, so that nothing more can come.
        self.ended = False
        self._object = self._guard(context.wrap_bio, self._incoming, self._outgoing, server_side, server_hostname)

    def handshake(self, data: bytes = b"") -> bool:
        """Take what came from the peer, and go on with the handshake; next, send :meth:`take_output`.

        :returns: whether it is done
        :raises TLSError: when it failed
        """
        if data:
            self._incoming.write(data)
        try:
            self._guard(self._object.do_handshake)
        except ssl.SSLWantReadError:
            return False
        self._done = True
        self.pending = True
        return True

    def take_output(self) -> bytes:
        """What must be written to the peer now; b"" for nothing."""
        return self._outgoing.read()

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """``data`` for the wire, behind whatever else was waiting to be written.

        :raises TLSError: when the connection is no longer fit for it
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self._guard(self._object.write, view) :]
            except ssl.SSLWantReadError:
                raise self._fail("protocol", "the peer wants to negotiate anew") from None
        return self._outgoing.read()

    def decrypt(self, data: bytes = b"", max_bytes: int = PIECE_BYTES) -> bytes:
        """Take ``data``, and give what is decrypted of all that was taken.

        :param max_bytes: the most that is given
        :returns: b"" when more input is needed, or none can come any more (``ended``)
        :raises TLSError: for input that cannot be
        """
        if data:
            self._incoming.write(data)
        pieces: list[bytes] = []
        size = 0
        self.pending = False
        while not self.ended:
            if size >= max_bytes:
                self.pending = True
                break
            try:
                piece = self._guard(self._object.read, max_bytes - size)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.ended = True
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def close(self) -> bytes:
        """close_notify, behind whatever else was waiting to be written; b"" before the handshake was done."""
        if self._done and self._error is None:
            # unwrap goes on to wait for the peer's; nobody here does.
            with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError, TLSError):
                self._guard(self._object.unwrap)
        return self._outgoing.read()

    @property
    def version(self) -> str:
        """As "TLSv1.3"; empty before the handshake."""
        return self._object.version() or ""

    @property
    def cipher(self) -> str:
        """The cipher suite's name; empty before the handshake."""
        cipher = self._object.cipher()
        return cipher[0] if cipher else ""

    @property
    def peer_certificate(self) -> dict[str, object]:
        """The peer's certificate as ``ssl`` gives it; empty where none was asked for or verified."""
        return dict(self._object.getpeercert() or {}) if self._done else {}

    def _guard(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Make one call of OpenSSL; every fault becomes a TLSError, which is the last word."""
        if self._error is not None:
            raise self._error
        try:
            return call(*arguments)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLCertVerificationError as exc:
            kind = _CERTIFICATE_FAULTS.get(exc.verify_code, "certificate")
            raise self._fail(kind, exc.verify_message) from exc
        except ssl.SSLError as exc:
            reason = exc.reason or ""
            kind = _NO_COMMON_GROUND.get(reason) or ("refused" if "_ALERT_" in reason else "protocol")
            raise self._fail(kind, reason.lower().replace("_", " ") or str(exc)) from exc
        except (OSError, ValueError, TypeError) as exc:
            # The last two: a server_hostname that cannot be one.
            raise self._fail("protocol", str(exc)) from exc

    def _fail(self, kind: str, detail: str) -> TLSError:
        self._error = TLSError(kind, detail)
        self.pending = False
        return self._error


def client_context(root_ca_file: str | None, cert: str | None, key: str | None, verify: bool) -> ssl.SSLContext:
    """A client's context, TLS 1.2 or newer; one for all connections with the same files, until a file changes.

    :param root_ca_file: certificates of those to trust, in PEM; None for the system's
    :param cert: this side's certificate and chain, in PEM; None for none
    :param key: its key, in PEM; None if it is in ``cert``
    :param verify: whether the peer's certificate and name are checked
    :raises NegotiationFailed: when a file cannot be read or used
    """
    return _context(root_ca_file, cert, key, verify, tuple(map(_stamp, (root_ca_file, cert, key))))


def _stamp(path: str | None) -> tuple[int, int]:
    try:
        status = os.stat(path or "")
    except (OSError, ValueError):
        return 0, 0  # whoever opens it says what is wrong
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=16)
def _context(
    root_ca_file: str | None, cert: str | None, key: str | None, verify: bool, _stamps: object
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if root_ca_file is not None:
            what = f"tls_root_ca_file={root_ca_file!r}"
            context.load_verify_locations(root_ca_file)
        elif verify:
            what = "the system's certificates"
            context.load_default_certs()
        if cert is not None:
            what = f"tls_cert={cert!r}, tls_key={key!r}"
            context.load_cert_chain(cert, key, _no_password)
    except (OSError, ValueError) as exc:
        raise NegotiationFailed("tls_v1", f"cannot use {what}: {_words(exc)}") from exc
    return context


def _no_password() -> str:
    # Without this, OpenSSL asks on the terminal.
    raise ValueError("the key is encrypted; load it into an ssl_context")


def _words(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        # Without a reason: load_cert_chain, which did not find what it looked for.
        return (exc.reason or "no certificate, or no key to it, is in there").lower().replace("_", " ")
    return getattr(exc, "strerror", None) or str(exc) or "it holds nothing of use"
