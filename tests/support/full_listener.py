"""A listener whose queue is full: connecting to it neither succeeds nor fails."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_SYN_SENT = "02"


@contextmanager
def full_listener() -> Iterator[str]:
    """Context manager: its address. At the end, connections that are still being made are refused."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        while True:
            client = sockets.enter_context(socket.socket())
            client.settimeout(0.2)
            try:
                client.connect((host, port))
            except TimeoutError:
                break
        yield f"{host}:{port}"


def connecting(address: str) -> int:
    """How many sockets are connecting to it, from Linux's table; ``full_listener`` has one of them."""
    there = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(remote.endswith(there) and state == _SYN_SENT for _, _, remote, state, *_ in rows)
