"""The hub's turn."""

import gevent


def settle() -> None:
    """Let the hub do all that is due."""
    for _ in range(3):
        gevent.idle()
