"""What SIGINT and SIGTERM do to a command that runs greenlets and has child processes to end.

gevent is imported when something runs: ``--help`` loads none.
"""

from __future__ import annotations

import signal
from collections.abc import Callable


class Interrupted(BaseException):
    """SIGINT or SIGTERM came. No Exception: nobody on the way up may take it for a failure."""


def until_a_signal(run: Callable[[], int]) -> int:
    """Call ``run`` in a greenlet, in which the first SIGINT or SIGTERM raises Interrupted; what it gives, or raises.

    Python's own KeyboardInterrupt would come up in whatever greenlet runs at the moment. Further signals do
    nothing: after the first one the end is a matter of seconds.
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
