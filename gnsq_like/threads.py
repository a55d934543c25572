"""Which OS thread is this, patched or not."""

from __future__ import annotations

from gevent import monkey

#: The number of the OS thread, where threading.get_ident may be patched to tell greenlets apart.
thread_id = monkey.get_original("_thread", "get_ident")
