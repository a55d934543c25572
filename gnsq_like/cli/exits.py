"""How commands end: their exit statuses, and signals in those that run greenlets.

gevent is imported when something runs: ``--help`` does not load it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import click

#: The status that a shell gives a program ended by Ctrl-C; SIGTERM gives the same here.
INTERRUPTED_STATUS = 130


class CannotRun(click.ClickException):
    """The command could not begin; the message is a sentence."""

    exit_code = 2


class Interrupted(BaseException):
    """SIGINT or SIGTERM came. Not an Exception, so that no handler of failures catches it."""


def until_a_signal(run: Callable[[], int]) -> int:
    """Call ``run`` in a greenlet, in which the first SIGINT or SIGTERM raises Interrupted; returns what it returns.

    Python's own KeyboardInterrupt would be raised in the greenlet that happens to run. Further signals are ignored:
    after the first one the end is a matter of seconds.
    """
    import gevent

    outcome: list[int | BaseException] = []
    signals: list[int] = []

    def work() -> None:
        try:
            outcome.append(run())
        except BaseException as exc:
            outcome.append(exc)

    def interrupt(number: int) -> None:
        signals.append(number)
        if len(signals) == 1:
            greenlet.throw(Interrupted(signal.Signals(number).name))

    greenlet = gevent.spawn(work)
    handlers = [gevent.signal_handler(number, interrupt, number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        greenlet.join()
    finally:
        for handler in handlers:
            handler.cancel()
    # Interrupted before it began, it has no outcome.
    result = outcome[0] if outcome else Interrupted(signal.Signals(signals[0]).name)
    if isinstance(result, BaseException):
        raise result
    return result
