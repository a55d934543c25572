"""One direction through a fault proxy: its faults, for all connections. ``proxy`` carries them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gevent.event import Event


@dataclass(frozen=True, eq=False)
class Strike:
    """A fault at a byte of a connection's stream."""

    #: Bytes before it.
    offset: int
    #: "cut", "reset" or "corrupt".
    what: str
    #: Bytes that a corrupt one puts in place of as many; None inverts all bits of the byte.
    overlay: tuple[int | None, ...] = ()
    #: Whether it hits every connection; if not, only the first one that gets there.
    every: bool = False


class Direction:
    """One direction through a proxy, for all its connections.

    :param run: calls a function in the proxy's hub
    """

    def __init__(self, run: Callable[[Callable[[], object]], object]) -> None:
        self._run = run
        #: Seconds by which bytes received from now on are delayed.
        self.delay: float = 0.0
        #: Bytes that each connection forwards in a second; 0 for any number.
        self.bytes_per_second: float = 0.0
        #: Bytes forwarded so far, by all connections.
        self.count = 0
        #: Whether nothing is forwarded.
        self.is_frozen: bool = False
        self._thawed: Event | None = None
        self._strikes: list[Strike] = []

    def freeze(self) -> None:
        """Forward nothing; the connections stay open, and bytes received are kept for :meth:`thaw`."""
        self.is_frozen = True

    def thaw(self) -> None:
        """End a :meth:`freeze`, and forward the bytes received meanwhile. May switch."""
        if self.is_frozen:
            self._run(self._thaw)

    def _thaw(self) -> None:
        self.is_frozen = False
        if self._thawed is not None:
            self._thawed.set()
            self._thawed = None

    def cut_at(self, offset: int, *, every: bool = False) -> None:
        """Close a connection, in both directions, as soon as it has forwarded exactly ``offset`` bytes in this one.

        It hits the first connection that gets there, once; with ``every``, each one.
        """
        self._strikes.append(Strike(offset, "cut", every=every))

    def reset_at(self, offset: int, *, every: bool = False) -> None:
        """Like :meth:`cut_at`, but the connection ends with RST."""
        self._strikes.append(Strike(offset, "reset", every=every))

    def corrupt_at(self, offset: int, data: bytes | None = None, *, every: bool = False) -> None:
        """Invert all bits of byte ``offset`` of a connection's stream; the first byte is 0.

        It hits the first connection that gets there, once; with ``every``, each one.

        :param data: replaces as many bytes instead
        """
        self._strikes.append(Strike(offset, "corrupt", (None,) if data is None else tuple(data), every))

    def clear(self) -> None:
        """Remove all faults: no delay, no rate, no strike to come, not frozen. May switch."""
        self.delay = 0.0
        self.bytes_per_second = 0.0
        self._strikes = []
        self.thaw()

    # -- for the connections, in the proxy's hub -----------------------------------------------------

    def wait_until_thawed(self) -> None:
        """Wait while it is frozen. May switch."""
        while self.is_frozen:
            if self._thawed is None:
                self._thawed = Event()
            self._thawed.wait()

    def strikes_of(self, done: set[Strike]) -> list[Strike]:
        """The strikes that a connection has not had yet, the nearest first."""
        return sorted((s for s in self._strikes if s not in done), key=lambda strike: strike.offset)

    def use_up(self, strike: Strike) -> None:
        """Note that it has hit a connection."""
        if not strike.every:
            self._strikes.remove(strike)
