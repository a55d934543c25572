"""Threads and locks of the operating system, also where gevent has patched Python's.

The patched ones belong to greenlets. A simulation replaces these functions, so call ``start_new_thread`` and ``sleep``
as attributes of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent import monkey

#: ``start_new_thread(function, arguments)``; RuntimeError if there are no threads left.
start_new_thread: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")
#: Blocks the thread for so many seconds.
sleep: Callable[[float], object] = monkey.get_original("time", "sleep")
#: The id of the OS thread; the patched ``threading.get_ident`` identifies greenlets.
thread_id: Callable[[], int] = monkey.get_original("_thread", "get_ident")
allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
#: The classes ``RLock`` and ``local``.
RLock: Any = monkey.get_original("_thread", "RLock")
local: Any = monkey.get_original("_thread", "_local")
