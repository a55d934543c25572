"""How commands end: their exit statuses, and signals in those that run greenlets.

gevent is imported when something runs: ``--help`` does not load it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from gevent.event import Event

T = TypeVar("T")

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


def until_stopped(run: Callable[[Event], int], *, on_hup: Callable[[], object] | None = None) -> int:
    """Call ``run`` in a greenlet with an event, which the first SIGINT or SIGTERM sets; returns what it returns.

    A second signal raises Interrupted in it, for a user who does not want to wait.

    :param on_hup: called in the hub for each SIGHUP, and must not switch; without it, SIGHUP ends the process
    """
    import gevent
    from gevent.event import Event

    stop = Event()
    outcome: list[int | BaseException] = []

    def work() -> None:
        try:
            outcome.append(run(stop))
        except BaseException as exc:
            outcome.append(exc)

    def signalled(number: int) -> None:
        if stop.is_set():
            greenlet.throw(Interrupted(signal.Signals(number).name))
        stop.set()

    greenlet = gevent.spawn(work)
    handlers = [gevent.signal_handler(number, signalled, number) for number in (signal.SIGINT, signal.SIGTERM)]
    if on_hup is not None:
        handlers.append(gevent.signal_handler(signal.SIGHUP, on_hup))
    for handler in handlers:
        handler.ref = True  # the hub has something to wait for, even where nothing else is going on
    try:
        greenlet.join()
    finally:
        for handler in handlers:
            handler.cancel()
    result = outcome[0] if outcome else Interrupted("twice")
    if isinstance(result, BaseException):
        raise result
    return result


def result_of(work: Callable[[], T]) -> T:
    """What ``work`` returns, called in a greenlet; SIGINT or SIGTERM ends the process with status 130 meanwhile."""
    found: list[T] = []

    def run() -> int:
        found.append(work())
        return 0

    try:
        until_a_signal(run)
    except Interrupted:
        raise SystemExit(INTERRUPTED_STATUS) from None
    return found[0]


def run_service(run: Callable[[Event], object], *, on_hup: Callable[[], object] | None = None) -> NoReturn:
    """End the process with ``run``: 0 when it returns, also after a signal; 130 when a second signal interrupted it.

    :param run: called in a greenlet, see :func:`until_stopped`
    """

    def returning_0(stop: Event) -> int:
        run(stop)
        return 0

    try:
        status = until_stopped(returning_0, on_hup=on_hup)
    except Interrupted:
        status = INTERRUPTED_STATUS
    raise SystemExit(status)
