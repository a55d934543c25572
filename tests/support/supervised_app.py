"""The module whose Readers ``gnsq-like run`` runs in tests. A message's body says what its handler does."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import Any

from gevent import monkey

from gnsq_like import Message, Reader
from tests.support import notes
from tests.support.notes import note

note("loaded", "patched" if monkey.is_module_patched("threading") else "unpatched")

_sleep = monkey.get_original("time", "sleep")
#: Kept for ever, by handlers that are to fill the memory.
_hoard: list[bytes] = []


def work(message: Message) -> None:
    """Note the message, and do as it says."""
    name = message.body.decode()
    note("handling", name)
    kind = name.partition("-")[0]
    if kind == "block" and message.attempts == 1:
        while True:
            _sleep(1)
    if kind == "die" and message.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hoard":
        _hoard.append(os.urandom(50_000_000))
    if kind == "sleep" and message.attempts == 1:
        time.sleep(1000)
    if re.fullmatch(r"gate|[0-9.]+", kind):
        notes.work(name)
    note("handled", name)


def _reader(channel: str = "workers", **options: object) -> Reader:
    defaults: dict[str, Any] = {
        "max_in_flight": int(os.environ.get("MAX_IN_FLIGHT", "8")),
        "default_requeue_delay": 0.0,
        # Messages of a process that was killed come again after this.
        "msg_timeout": float(os.environ.get("MSG_TIMEOUT", "60")),
        "max_attempts": 0,
    }
    return Reader("work", channel, work, nsqd_tcp_addresses=os.environ["NSQD"], **(defaults | options))


def greenlets() -> list[Reader]:
    """Handlers in greenlets."""
    return [_reader()]


def threads() -> list[Reader]:
    """Handlers in threads."""
    return [_reader(spawn="thread")]


def secret() -> list[Reader]:
    """A Reader that nsqd refuses for ever."""
    return [_reader(tls_v1=True)]


def slow_end() -> list[Reader]:
    """A process that does not end when its readers have stopped."""
    threading.Thread(target=_sleep, args=(1000,)).start()
    return [_reader()]
