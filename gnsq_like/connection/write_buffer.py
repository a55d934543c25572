"""The write side of one connection: output is collected until the hub's next iteration.

``put`` only appends. Everything put before the hub runs its callbacks leaves in one write: a thousand FINs, or the
publishes of a hundred greenlets. The hub (with ``put_now``: the caller) writes without waiting; the rest is written
when the socket becomes writable. So an exception thrown into a caller's greenlet can never cut a command in half, and
no caller waits here.

Rules for editors: nothing in this file may switch greenlets. ``flush`` runs in the hub, so errors of writing go to
``on_broken`` only. What interrupts a write goes there, too, because a part of the output may be lost, and is raised.
What interrupts it may also call ``put`` or ``flush`` anywhere here: so swap before writing, and do not change an
attribute across a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gnsq_like.errors import ProtocolError
from gnsq_like.runtime.timer import Soon
from gnsq_like.transport.tcp import TcpTransport

#: Bytes joined into one write; beyond that, joining costs more than a second write.
_JOIN_BYTES = 1024 * 1024
#: libev's and libuv's event mask for "writable".
_WRITABLE = 2


class WriteBuffer:
    """The write side of one connection.

    :param loop: the hub's event loop
    :param on_broken: called once with the error that ended writing; must not switch
    """

    def __init__(self, transport: TcpTransport, loop: Any, on_broken: Callable[[BaseException], None]) -> None:
        self._transport = transport
        self._loop = loop
        self._on_broken = on_broken
        self._pieces: list[bytes] = []
        #: The rest of an incomplete write; goes before ``_pieces``.
        self._rest: memoryview | None = None
        #: Waits for the socket to become writable after an incomplete write.
        self._watcher: Any = None
        self._flush_soon = Soon(loop, self.flush)
        self._writing = False
        #: Whether it takes no more output.
        self.closed = False
        #: Monotonic time since which the kernel has accepted nothing although there is output.
        self.stalled_since: float | None = None
        #: Bytes put so far.
        self.put_count = 0
        #: Bytes passed to the transport so far; the peer may see them.
        self.sent_count = 0

    def put(self, data: bytes) -> bool:
        """Queue one or more whole commands; returns whether it is open. Never switches."""
        if self.closed:
            return False
        self._pieces.append(data)
        self.put_count += len(data)
        if self._watcher is None:
            self._flush_soon()
        return True

    def put_now(self, data: bytes) -> bool:
        """Queue commands, and write what the kernel accepts unless earlier output is queued. As :meth:`put`."""
        if self._pieces or self._watcher is not None or self._writing or self.closed:
            return self.put(data)
        self._pieces.append(data)
        self.put_count += len(data)
        self.flush()
        return True

    @property
    def idle(self) -> bool:
        """Whether everything put is written."""
        return not (self._pieces or self._watcher is not None or self.closed)

    def close(self) -> None:
        """Drop what is queued, and ignore further output; twice is fine. Call before the socket is closed."""
        self.closed = True
        self._pieces = []
        self._rest = None
        self.stalled_since = None
        self._unwatch()

    def flush(self) -> None:
        """Write at once what the kernel accepts of everything queued. Never switches.

        Also while waiting for the socket to become writable, which a blocked hub may not have noticed.
        """
        if self.closed or self._writing:
            return
        try:
            self._writing = True
            while self._rest is not None or self._pieces or self._transport.unsent:
                data: bytes | memoryview | None = self._rest
                if data is None:
                    pieces, self._pieces = self._pieces, []
                    data = pieces[0] if len(pieces) == 1 else self._join(pieces)
                if not self._write(data):
                    return
        except (OSError, ProtocolError) as exc:
            self._break(exc)
        except BaseException as exc:
            self.sent_count = self.put_count  # the peer may have seen all of it
            self._break(exc)
            raise
        finally:
            self._writing = False
        if self._watcher is not None:
            self._unwatch()

    def _write(self, data: bytes | memoryview) -> bool:
        """Whether the kernel accepts this, which precedes what is queued; if not, the rest waits for the socket."""
        transport = self._transport
        waiting = transport.unsent
        sent = transport.send_now(data)
        if self.closed:
            return False
        self.sent_count += sent
        self._rest = memoryview(data)[sent:] if sent < len(data) else None
        if self._rest is None and not transport.unsent:
            self.stalled_since = None
            return True
        if sent or transport.unsent < waiting or self.stalled_since is None:
            self.stalled_since = time.monotonic()
        self._watch()
        return False

    def _break(self, exc: BaseException) -> None:
        self.close()
        self._on_broken(exc)

    def _join(self, pieces: list[bytes]) -> bytes:
        """The first of these in one piece; the others go back."""
        if self.put_count - self.sent_count > _JOIN_BYTES:
            taken = size = 0
            while taken < len(pieces) and size < _JOIN_BYTES:
                size += len(pieces[taken])
                taken += 1
            self._pieces = pieces[taken:] + self._pieces
            pieces = pieces[:taken]
        return b"".join(pieces)

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = self._loop.io(self._transport.fileno(), _WRITABLE)
            self._watcher.start(self.flush)

    def _unwatch(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()
