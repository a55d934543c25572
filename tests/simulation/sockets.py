"""gevent's own socket class on a descriptor of the simulated network.

Waiting, timeouts, ``sendall`` and ``makefile`` are gevent's; only the system calls below them are simulated.
"""

from __future__ import annotations

import socket
from typing import Any

import gevent.select
import gevent.server
import gevent.socket
from gevent import get_hub
from gevent._socket3 import socket as gevent_socket
from gevent._socketcommon import SocketMixin

from tests.simulation.network import Descriptor, Network
from tests.simulation.process import CURRENT


def socket_class(network: Network) -> type:
    """The class of sockets on this network."""

    class SimulatedSocket(gevent_socket):
        """A TCP socket."""

        def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
            SocketMixin.__init__(self)
            if family not in (-1, socket.AF_INET, socket.AF_INET6):
                raise OSError(f"the simulated network has no sockets of family {family}")
            loop = network.loop
            self._closed = False
            self._io_refs = 0
            self._sock = Descriptor(network, CURRENT.get()) if fileno is None else loop.file(fileno)
            self.hub = get_hub()
            number = self._sock.number
            self._read_event = loop.io(number, 1)
            self._write_event = loop.io(number, 2)
            self.timeout = None

        def __del__(self) -> None:
            # As the descriptor of a real one; gevent's servers use a listener's descriptor without its socket.
            descriptor = getattr(self, "_sock", None)
            if isinstance(descriptor, Descriptor) and not descriptor.listens:
                descriptor.close()

        def accept(self) -> tuple[Any, Any]:
            while True:
                try:
                    number, address = self._sock._accept()
                    return SimulatedSocket(fileno=number), address
                except BlockingIOError:
                    if self.timeout == 0.0:
                        raise
                self._wait(self._read_event)

    return SimulatedSocket


def install(network: Network) -> None:
    """From now on, all sockets of this interpreter are simulated."""
    simulated = socket_class(network)
    socket.socket = socket.SocketType = simulated  # type: ignore[misc, assignment]
    gevent.socket.socket = gevent.socket.SocketType = simulated
    gevent.server.GeventSocket = simulated

    def select_now(readers: list[Any], writers: list[Any], others: list[Any], timeout: float) -> Any:
        """What is ready, without waiting."""
        return _ready(network, readers, 1), _ready(network, writers, 2), []

    gevent.select._original_select = select_now


def _ready(network: Network, sockets: list[Any], events: int) -> list[Any]:
    return [each for each in sockets if network.loop.file(each.fileno()).events() & events]
