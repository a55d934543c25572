"""What a daemon writes to one client: nsqd's output buffer and its flush rules (docs/internals 1.13).

Messages go into a buffer; responses, errors and heartbeats go behind them and push it out. What is
beyond the buffer's size leaves at once. A buffer that holds messages for a client who can still take
more is flushed by a ticker. nsqd's ticker runs freely and keeps one tick that nobody waited for; so
after a quiet time the first message leaves at once and the next may wait a whole period. Here a timer
is started only when something waits, for the moment at which that ticker would tick.

Where TLS or a codec was negotiated, ``encode`` turns what is to be written into what goes over the wire,
once for all that is flushed together.

Nothing here switches greenlets. When the socket takes no more, the rest is kept in ``_unsent`` and one
greenlet, which exists only then, writes it out; meanwhile ``held_up`` is true and whoever feeds the
output should stop.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import gevent
from gevent import socket
from gevent.event import Event

from gnsq_like.errors import ProtocolError
from gnsq_like.runtime.timer import Timer


class Output:
    """The writing side of one connection.

    :param sock: a gevent socket that does not block
    :param on_held_up: called with True when the socket takes no more, with False when it does again
    :param on_broken: called once, when writing has become impossible
    """

    def __init__(self, sock: socket.socket, on_held_up: Callable[[bool], None], on_broken: Callable[[], None]) -> None:
        self._sock = sock
        self._on_held_up = on_held_up
        self._on_broken = on_broken
        #: Bytes that are buffered at most; 1 for no buffer.
        self.size = 1
        #: TLS and codec, from the upgrade on; called once for all bytes, in their order.
        self.encode: Callable[[bytes], bytes] | None = None
        #: Seconds for which the socket may take nothing; None for any time.
        self.write_timeout: float | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        #: Whether a response is in the buffer.
        self.flush_is_owed = False
        #: Seconds between ticks, 0 for no ticker; when it started; how many ticks are used up.
        self._period = 0.0
        self._ticker_start = 0.0
        self._ticks_used = 0
        self._alarm = Timer(self._tick)
        #: Whether the socket takes no more at the moment, and what waits for it behind what the drainer writes.
        self.held_up = False
        self._unsent: list[bytes] = []
        self._drained = Event()
        self._drained.set()
        self._drainer: gevent.Greenlet | None = None
        self._closed = False

    def wait_until_drained(self, timeout: float | None = None) -> None:
        """Wait until the socket has taken everything that was written, or is closed. May switch."""
        self._drained.wait(timeout)

    def set_ticker(self, period: float) -> None:
        """Start the ticker anew: it ticks every ``period`` seconds from now; 0 for never."""
        self._alarm.cancel()
        self._period = period
        self._ticker_start = monotonic()
        self._ticks_used = 0

    def add(self, data: bytes) -> None:
        """Put ``data`` behind what is buffered; :meth:`flush` must follow before anybody waits. Never switches."""
        self._buffer.append(data)
        self._buffered += len(data)
        self.flush_is_owed = True

    def send_buffered(self, data: bytes) -> None:
        """Buffer ``data``; what is beyond the buffer's size is written now. Never switches."""
        self._buffer.append(data)
        self._buffered += len(data)
        if self.size == 1:
            self.flush()
        elif self._buffered > self.size:
            joined = b"".join(self._buffer)
            end = len(joined) - len(joined) % self.size
            self._buffer = [joined[end:]]
            self._buffered = len(joined) - end
            self._write(joined[:end])

    def flush(self) -> None:
        """Write all that is buffered. Never switches."""
        if self._buffered:
            data = b"".join(self._buffer)
            self._buffer = []
            self._buffered = 0
            self.flush_is_owed = False
            self._write(data)

    def flush_and_rest(self) -> None:
        """Flush, and wait for no tick: the client takes nothing more for now."""
        self._alarm.cancel()
        self.flush()

    def flush_on_tick(self) -> None:
        """Flush when the ticker ticks; that is now if it has ticked since a tick was last used."""
        if not self._period or self._alarm.is_set:
            return
        elapsed = monotonic() - self._ticker_start
        ticks = int(elapsed / self._period)
        if ticks > self._ticks_used:
            self._ticks_used = ticks
            self.flush()
        else:
            self._alarm.set((ticks + 1) * self._period - elapsed)

    def _tick(self) -> None:
        # The alarm may ring a little early by this clock; the tick it was set for is used up all the same.
        self._ticks_used = max(self._ticks_used + 1, int((monotonic() - self._ticker_start) / self._period))
        self.flush()

    def close(self) -> None:
        """Write nothing more. The socket stays open: it belongs to the connection."""
        self._closed = True
        self._alarm.cancel()
        self._buffer = []
        self._buffered = 0
        self._unsent = []
        self._drained.set()
        if self._drainer is not None and self._drainer is not gevent.getcurrent():
            self._drainer.kill(block=False)

    def _write(self, data: bytes) -> None:
        if self._closed:
            return
        if self.encode is not None:
            try:
                data = self.encode(data)
            except ProtocolError:  # TLS is broken, and with it the connection
                self.close()
                self._on_broken()
                return
        self.write_wire(data)

    def write_wire(self, data: bytes) -> None:
        """Write what is encoded already, behind all that was written. Never switches."""
        if self._closed or not data:
            return
        if self.held_up:
            self._unsent.append(data)
            return
        sent = self._send_now(data)
        if sent < len(data) and not self._closed:
            self.held_up = True
            self._unsent.append(data[sent:])
            self._drained.clear()
            self._drainer = gevent.spawn(self._drain)
            self._on_held_up(True)

    def _send_now(self, data: bytes | memoryview) -> int:
        """How many bytes the socket takes at once; after an error none, and the output is closed."""
        try:
            return int(self._sock.send(data))
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            self._on_broken()
            return 0

    def _drain(self) -> None:
        """Greenlet: write out what the socket did not take at once."""
        while self._unsent:
            block = memoryview(b"".join(self._unsent))
            self._unsent = []
            while block:
                try:
                    socket.wait_write(self._sock.fileno(), self.write_timeout)
                except OSError:  # stuck for too long (docs/internals 1.13), or closed meanwhile
                    self.close()
                    self._on_broken()
                    return
                block = block[self._send_now(block) :]
                if self._closed:
                    return
        self.held_up = False
        self._drained.set()
        self._on_held_up(False)
