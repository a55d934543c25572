"""What nsqd and nsqlookupd have in common as daemons: how they end."""

from contextlib import ExitStack

from gevent import socket

from gnsq_like.server import Nsqlookupd
from tests.support.daemons import wait_for


def test_connections_end_in_the_order_in_which_they_began() -> None:
    """And not in one that depends on addresses in memory, so that the same run is the same in every process."""
    served: list[str] = []
    ended: list[str] = []

    class Noting(Nsqlookupd):
        def _serve_client(self, sock: socket.socket, address: str) -> None:
            served.append(address)
            try:
                super()._serve_client(sock, address)
            finally:
                ended.append(address)

    with ExitStack() as clients, Noting(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0") as daemon:
        host, port = daemon.tcp_address.rsplit(":", 1)
        for count in range(1, 31):
            clients.enter_context(socket.create_connection((host, int(port))))
            wait_for(lambda count=count: len(served) == count)  # type: ignore[misc]
        daemon.stop()
    assert ended == served
