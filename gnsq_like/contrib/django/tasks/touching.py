"""TOUCHes messages while their tasks run, because a task may take longer than nsqd's msg-timeout.

nsqd permits that up to its max-msg-timeout (15 minutes unless set); after it the message is delivered again, and the
task runs twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq_like import Message

#: Seconds between two looks at the messages.
_INTERVAL = 0.25

#: The messages of running tasks, each with the monotonic time of its next TOUCH.
_running: dict[Message, float] = {}
_lock = threading.Lock()
#: The thread that touches, while there is something to touch; a greenlet if threading is patched.
_thread: threading.Thread | None = None


@contextmanager
def touched(message: Message) -> Iterator[None]:
    """Keep a message from timing out during the block."""
    global _thread
    with _lock:
        _running[message] = _next(message)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_touch, name="gnsq_like tasks", daemon=True)
            _thread.start()
    try:
        yield
    finally:
        with _lock:
            _running.pop(message, None)


def _next(message: Message) -> float:
    now = time.monotonic()
    return now + max(_INTERVAL, (message.timeout_at - now) / 2)


def _touch() -> None:
    global _thread
    while True:
        time.sleep(_INTERVAL)
        now = time.monotonic()
        with _lock:
            if not _running:
                _thread = None
                return
            due = [message for message, at in _running.items() if at <= now]
            for message in due:
                message.touch()  # never switches
                _running[message] = _next(message)
