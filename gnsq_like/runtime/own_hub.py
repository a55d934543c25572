"""This thread's hub, or an exception where a new one cannot be made.

libev calls abort(), which ends the process, when file descriptors are lacking for a new event loop. So whether there
are enough is tried first. Another thread may take them just then, but the rest of the time this is an error to handle.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from gevent import get_hub
from gevent._hub_local import get_hub_if_exists

#: File descriptors of a new hub: two with libev (four where there is no eventfd), six with libuv.
_DESCRIPTORS = 8


def own_hub() -> Any:
    """This thread's hub, made if there is none.

    :raises OSError: if there are not enough file descriptors for a new one
    """
    hub = get_hub_if_exists()
    if hub is not None:
        return hub
    with ExitStack() as tried:
        for _ in range(_DESCRIPTORS // 2):
            for end in os.pipe():
                tried.callback(os.close, end)
    return get_hub()
