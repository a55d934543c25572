"""The hub of the test kit's daemons and proxies, for tests of every kind.

- Sockets are not patched: in a thread with a hub of its own. The test may block on plain sockets, use threads or
  asyncio, or have a hub itself; the daemon or proxy is not held up.
- Sockets are monkey-patched: in the hub of the thread that starts them, which runs whenever the test waits.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager

from gevent import monkey

from gnsq_like.runtime.hub_calls import HubHandle, handle_here
from gnsq_like.runtime.hub_thread import HubThread

#: Seconds for a thread to end.
_END_TIMEOUT = 10.0


@contextmanager
def kit_hub(own_thread: bool | None = None) -> Iterator[HubHandle]:
    """A hub for the block; call functions in it with ``run``, from any thread. May switch, or block, at both ends.

    :param own_thread: whether in a thread of its own; None for the choice above
    """
    if own_thread is None:
        own_thread = not monkey.is_module_patched("socket")
    if not own_thread:
        yield handle_here()
        return
    thread = HubThread("gnsq_like.testing")
    # A thread that still runs greenlets when the interpreter is taken down can crash the process.
    atexit.register(thread.end, _END_TIMEOUT)
    try:
        yield thread.start()
    finally:
        atexit.unregister(thread.end)
        thread.end(_END_TIMEOUT)
