"""TLS as bytes to bytes, with ``SSLContext.wrap_bio``: no socket, so any context works, patched or not.

One object serves one connection, as client or server::

    tls = Tls(context, server_hostname="nsqd.example")          # or Tls(context, server_side=True)
    while not tls.handshake(received):                          # b"" at first; then bytes from the peer
        send(tls.take_output()); received = ...
    send(tls.take_output())                                     # the handshake's last bytes, if any
    wire = tls.encrypt(data)                                    # to be written whole, in this order
    piece = tls.decrypt(received)                               # its content; then, while tls.pending:
    piece = tls.decrypt()
    send(tls.close())                                           # close_notify

Application data received together with the end of the handshake is returned by the first ``decrypt()``. After a
TLSError the object refuses further use, except that ``take_output`` returns the alert for the peer.

Rules for editors: this module imports ssl, so it must be imported only when TLS begins (docs/internals, TLS).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from gnsq_like.errors import NegotiationFailed, TLSError, reason_of
from gnsq_like.transport.compression import PIECE_BYTES

_T = TypeVar("_T")

#: OpenSSL's X509_V_ERR_ codes, as kinds of TLSError.
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
#: OpenSSL's reasons that mean "not TLS" or "no common version", as kinds of TLSError.
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
    """TLS on one connection.

    :param context: an ``ssl.SSLContext``
    :param server_side: whether this end is the server
    :param server_hostname: for a client: the name required in the server's certificate, and SNI
    """

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._error: TLSError | None = None
        self._done = False
        #: Whether ``decrypt()`` may return more without more input.
        self.pending = False
        #: Whether the peer sent close_notify.
        self.ended = False
        self._object = self._guard(context.wrap_bio, self._incoming, self._outgoing, server_side, server_hostname)

    def handshake(self, data: bytes = b"") -> bool:
        """Continue the handshake with bytes from the peer. Next: send :meth:`take_output`.

        :returns: whether the handshake is complete
        :raises TLSError: if it failed
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
        """Bytes to write to the peer now; may be empty."""
        return self._outgoing.read()

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Encrypt ``data``; the result begins with other output that was pending.

        :raises TLSError: if TLS has failed
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self._guard(self._object.write, view) :]
            except ssl.SSLWantReadError:
                raise self._fail("protocol", "the peer requested renegotiation") from None
        return self._outgoing.read()

    def decrypt(self, data: bytes = b"", max_bytes: int = PIECE_BYTES) -> bytes:
        """Take ``data``, and return decrypted data of everything taken so far.

        :param max_bytes: at most this much is returned
        :returns: b"" if more input is needed, or the stream has ``ended``
        :raises TLSError: for invalid input
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
        """close_notify, after other output that was pending; b"" before the handshake is complete."""
        if self._done and self._error is None:
            # unwrap raises SSLWantReadError for the peer's close_notify, which is not waited for.
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
        """The peer's certificate in ``ssl``'s form; empty if none was requested or verified."""
        return dict(self._object.getpeercert() or {}) if self._done else {}

    def _guard(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Call OpenSSL; every fault becomes a TLSError, which all later calls raise again."""
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
            # ValueError, TypeError: an invalid server_hostname.
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
    # The system's directory of certificates needs no stamp: OpenSSL looks in it at each handshake.
    trusted = root_ca_file or ssl.get_default_verify_paths().cafile
    return _context(root_ca_file, cert, key, verify, tuple(map(_stamp, (trusted, cert, key))))


def _stamp(path: str | None) -> tuple[int, int]:
    try:
        status = os.stat(path or "")
    except (OSError, ValueError):
        return 0, 0  # loading it will report the error
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
        raise NegotiationFailed("tls_v1", f"cannot use {what}: {_words(exc)}", may_pass=True) from exc
    return context


def _no_password() -> str:
    # Without this, OpenSSL prompts on the terminal.
    raise ValueError("the key is encrypted; load it into an ssl_context")


def _words(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        # load_cert_chain gives no reason if the certificate or the key is missing.
        return (exc.reason or "it holds no certificate, or not its key").lower().replace("_", " ")
    return reason_of(exc) if str(exc) else "it holds no certificates"
