"""A daemon's output to one client: nsqd's output buffer and its flush rules (docs/internals 1.13).

Messages go into a buffer; responses, errors and heartbeats go behind them and flush it. Bytes beyond the
buffer's size are written at once. A buffer with messages for a client that can still take more is flushed by
a ticker.

After TLS or a codec was negotiated, ``encode`` encodes what is written, once for everything that is flushed
together.

Nothing here switches greenlets. When the socket accepts no more, the rest is kept in ``_unsent`` and a
greenlet, which exists only then, writes it; meanwhile ``held_up`` is true and no more should be added.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from gevent import socket
from gevent.event import Event

from gnsq_like.errors import ProtocolError
from gnsq_like.runtime.timer import Timer


class Ticker:
    """nsqd's ticker, which runs freely and keeps one unused tick.

    So after a quiet time the first message is written at once, and the next may wait a whole period. Here a timer is
    started only when something waits, for the time of the next tick.

    :param on_tick: called at a tick that is waited for
    """

    def __init__(self, on_tick: Callable[[], None]) -> None:
        self._on_tick = on_tick
        #: Seconds between ticks, 0 for none; when it started; how many ticks have been used.
        self._period = 0.0
        self._started = 0.0
        self._used = 0
        self._timer = Timer(self._tick)

    def restart(self, period: float) -> None:
        """Tick every ``period`` seconds from now on; 0 for never."""
        self._timer.cancel()
        self._period = period
        self._started = time.monotonic()
        self._used = 0

    def wait(self) -> None:
        """Wait for the next tick; if it has ticked since a tick was last used, that is now. Never switches."""
        if not self._period or self._timer.is_set:
            return
        elapsed = time.monotonic() - self._started
        ticks = int(elapsed / self._period)
        if ticks > self._used:
            self._used = ticks
            self._on_tick()
        else:
            self._timer.set((ticks + 1) * self._period - elapsed)

    def rest(self) -> None:
        """Wait for no tick."""
        self._timer.cancel()

    def _tick(self) -> None:
        # The timer may fire a little early by this clock; its tick counts as used all the same.
        self._used = max(self._used + 1, int((time.monotonic() - self._started) / self._period))
        self._on_tick()


class Output:
    """The writing side of one connection.

    :param sock: a socket without gevent, whose calls never wait
    :param on_held_up: called with True when the socket accepts no more, with False when it does again
    :param on_broken: called once, when writing fails
    """

    def __init__(self, sock: socket.socket, on_held_up: Callable[[bool], None], on_broken: Callable[[], None]) -> None:
        self._sock = sock
        self._on_held_up = on_held_up
        self._on_broken = on_broken
        #: The most bytes in the buffer; 1 for no buffer.
        self.size = 1
        #: TLS and codec, after an upgrade; called exactly once for all bytes, in their order.
        self.encode: Callable[[bytes], bytes] | None = None
        #: Seconds for which the socket may accept nothing; None for no limit.
        self.write_timeout: float | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        #: Whether a response is in the buffer.
        self.flush_is_owed: bool = False
        #: Flushes messages for a client that can still take more.
        self.ticker: Ticker = Ticker(self.flush)
        #: Whether the socket accepts no more at the moment, and the bytes to write after those of the drainer.
        self.held_up: bool = False
        self._unsent: list[bytes] = []
        self._drained = Event()
        self._drained.set()
        self._drainer: gevent.Greenlet | None = None
        self._closed = False

    def wait_until_drained(self) -> None:
        """Wait until the socket has accepted everything that was written, or is closed. May switch."""
        self._drained.wait()

    def add(self, data: bytes) -> None:
        """Add ``data`` to the buffer; :meth:`flush` must follow before the greenlet waits. Never switches."""
        self._buffer.append(data)
        self._buffered += len(data)
        self.flush_is_owed = True

    def send_buffered(self, data: bytes) -> None:
        """Buffer ``data``; bytes beyond the buffer's size are written now. Never switches."""
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
            self._buffer.clear()
            self._buffered = 0
            self.flush_is_owed = False
            self._write(data)

    def flush_and_rest(self) -> None:
        """Flush, and wait for no tick: the client can be sent nothing more for now."""
        self.ticker.rest()
        self.flush()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is written: after ``close``, or because writing failed."""
        return self._closed

    def close(self) -> None:
        """Write nothing more. The connection closes the socket."""
        self._closed = True
        self.ticker.rest()
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
            except ProtocolError:  # TLS is broken
                self.close()
                self._on_broken()
                return
        self.write_wire(data)

    def write_wire(self, data: bytes) -> None:
        """Write encoded bytes, behind everything written before. Never switches."""
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
        """Send what the socket accepts at once; returns how many bytes. After an error, 0, and the output is closed."""
        try:
            return int(self._sock.send(data))
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            self._on_broken()
            return 0

    def _drain(self) -> None:
        """Greenlet: write what the socket did not accept at once."""
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
