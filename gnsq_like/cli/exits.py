"""The end of commands: exit statuses, signals in commands that run greenlets, and a stdout that fails.

gevent is imported when a command runs: ``--help`` does not load it.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

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
    return _until_signals(lambda stop: run(), throw_at=1)


def _until_signals(run: Callable[[Event], T], *, throw_at: int, on_hup: Callable[[], object] | None = None) -> T:
    import gevent
    from gevent.event import Event

    from gnsq_like.runtime.signals import on_signals

    stop = Event()
    outcome: list[T] = []
    errors: list[BaseException] = []
    signals: list[str] = []

    def work() -> None:
        try:
            outcome.append(run(stop))
        except BaseException as exc:
            errors.append(exc)

    def signalled(number: int) -> None:
        signals.append(signal.Signals(number).name)
        stop.set()
        if len(signals) == throw_at:
            greenlet.throw(Interrupted(signals[-1]))

    greenlet = gevent.spawn(work)
    with on_signals((signal.SIGINT, signal.SIGTERM), signalled), ExitStack() as stack:
        if on_hup is not None:
            stack.enter_context(on_signals((signal.SIGHUP,), lambda number: on_hup()))
        greenlet.join()
    if outcome:
        return outcome[0]
    # If it was interrupted before it began, it has no result.
    raise errors[0] if errors else Interrupted(signals[-1])


def result_of(work: Callable[[], T]) -> T:
    """Call ``work`` in a greenlet, and return its result; SIGINT or SIGTERM ends the process with status 130."""
    with interrupted_is(INTERRUPTED_STATUS):
        return _until_signals(lambda stop: work(), throw_at=1)


@contextmanager
def interrupted_is(status: int) -> Iterator[None]:
    """Within this, Interrupted ends the process with a status."""
    try:
        yield
    except Interrupted:
        raise SystemExit(status) from None


def run_service(run: Callable[[Event], object], *, on_hup: Callable[[], object] | None = None) -> NoReturn:
    """End the process with the status that ``run`` returns, 0 for None; 130 when a second signal interrupted it.

    :param run: called in a greenlet with an event, which the first SIGINT or SIGTERM sets; a second one raises
        Interrupted in it, for a user who does not want to wait
    :param on_hup: called in the hub for each SIGHUP, and must not switch; without it, SIGHUP ends the process
    """
    with interrupted_is(INTERRUPTED_STATUS):
        status = _until_signals(run, throw_at=2, on_hup=on_hup)
    raise SystemExit(status if isinstance(status, int) else 0)


class StdoutFailed(OSError):
    """stdout cannot be written, for instance because the disk is full."""


class _Stdout(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            raise StdoutFailed(exc.errno, exc.strerror) from exc


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Within this, printing raises StdoutFailed instead of OSError, and so does the final flush."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):  # closed, or somebody's own
        yield
        return
    stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(stdout.fileno(), "w", closefd=False)),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except StdoutFailed:
        discard_stdout(stdout.fileno())
        raise


def discard_stdout(descriptor: int = 1) -> None:
    """Drop the buffer after a failure: it would be written again at exit, and fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
