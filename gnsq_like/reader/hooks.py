"""The hooks of a Reader, and how the other modules of this room call those that concern messages.

All of them are called in one greenlet (``HookRunner``), so none delays or loses a message. Without a hook its attribute
of ``MessageHooks`` is None, and the path of a message has one look at that for many messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gnsq_like.reader.message import Message
from gnsq_like.runtime.hook_runner import HookRunner
from gnsq_like.runtime.timer import Timer

#: With how many arguments each hook is called.
ARGUMENTS: Mapping[str, int] = {
    "on_connect": 1,
    "on_disconnect": 2,
    "on_error": 2,
    "on_auth": 2,
    "on_backoff": 2,
    "on_finish": 1,
    "on_requeue": 2,
    "on_failure": 2,
    "on_timeout": 1,
}


class MessageHooks:
    """Those about messages, as functions that schedule the call; None where there is no hook."""

    def __init__(self, hooks: HookRunner) -> None:
        #: Called with a message whose FIN is on its way.
        self.finish: Callable[[Message], None] | None = hooks.caller("on_finish")
        #: Called with a message whose REQ is on its way, and the delay in seconds.
        self.requeue: Callable[[Message, float], None] | None = hooks.caller("on_requeue")
        #: Called with a message and what its handler raised.
        self.failure: Callable[[Message, BaseException], None] | None = hooks.caller("on_failure")
        timeout: Callable[[Message], None] | None = hooks.caller("on_timeout")
        #: Gets the messages that count as overdue.
        self.overdue = None if timeout is None else Overdue(timeout)


class Overdue:
    """Reports overdue messages when their time at nsqd is really over.

    A message counts as overdue shortly before that (see ``FlowControl``), and may still be answered or touched.
    """

    def __init__(self, report: Callable[[Message], object]) -> None:
        self._report = report
        self._messages: list[Message] = []
        self._timer = Timer(self._check)

    def add(self, messages: list[Message]) -> None:
        """Watch these messages. Never switches."""
        self._messages += messages
        self._timer.set_by(min(message.timeout_at for message in messages))

    def stop(self) -> None:
        """Report no more; twice is fine."""
        self._messages.clear()
        self._timer.cancel()

    def _check(self) -> None:
        # One that was touched is no longer overdue, and is added again when it is.
        left = [each for each in self._messages if each.answer is None and each._is_overdue]
        now = time.monotonic()
        self._messages = [message for message in left if message.timeout_at > now]
        for message in left:
            if message.timeout_at <= now:
                self._report(message)
        if self._messages:
            self._timer.set_by(min(message.timeout_at for message in self._messages))
