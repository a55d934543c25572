"""Threads and locks of the operating system, where threading is patched, too."""

import subprocess
import sys

_PATCHED = """
from gevent import monkey
monkey.patch_all()
import threading
from gnsq_like.runtime import native

other = []
lock = native.allocate_lock()
lock.acquire()
native.start_new_thread(lambda: (other.append(native.thread_id()), lock.release()), ())
assert lock.acquire(True, 10)
assert other != [native.thread_id()]
assert native.RLock is not threading.RLock and native.local is not threading.local
"""


def test_they_are_no_greenlets() -> None:
    subprocess.run([sys.executable, "-c", _PATCHED], check=True)
