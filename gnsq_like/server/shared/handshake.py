"""The server's side of a TLS handshake with a client whose socket is read and written as plain bytes."""

from __future__ import annotations

import ssl
import time

from gnsq_like.errors import TLSError
from gnsq_like.server.shared.connection import Connection
from gnsq_like.transport.tls import Tls

#: Seconds for a handshake, as nsqd has it.
HANDSHAKE_TIMEOUT = 5.0
#: The first byte of a TLS record of type alert or handshake.
_FIRST_BYTES = (0x15, 0x16)


class HandshakeFailed(Exception):
    """The handshake failed; the text is for the client."""


def shake_hands(connection: Connection, context: ssl.SSLContext) -> Tls:
    """Make a TLS handshake over the connection's socket. Switches.

    :raises HandshakeFailed: TLS's alert, if there is one, has been written then
    """
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT
    tls = Tls(context, server_side=True)
    try:
        received = connection.receive_wire(deadline)
        if received[0] not in _FIRST_BYTES:
            raise HandshakeFailed("tls: first record does not look like a TLS handshake")
        while not tls.handshake(received):
            connection.output.write_wire(tls.take_output())
            received = connection.receive_wire(deadline)
    except TLSError as exc:
        raise HandshakeFailed(f"tls: {exc.detail}") from exc
    except TimeoutError:
        raise HandshakeFailed("i/o timeout") from None
    except EOFError:
        raise HandshakeFailed("EOF") from None
    finally:
        connection.output.write_wire(tls.take_output())
    return tls
