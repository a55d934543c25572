"""A test that outlives its time limit is named, and does not hang the run: hooks of pytest, which tests/conftest.py
takes up. The limit is pytest-timeout's: ``timeout`` in setup.cfg, or the test's mark. It is for tests that hang, not
for machines that are busy: there it is longer.

At its limit the test fails, in its own greenlet, even while that waits for others. pytest-timeout itself does not know
greenlets: it raises in whichever greenlet runs just then, which ends that one, and the test may pass.

A test may outlive its failure: it catches everything, a greenlet computes without end, a fixture hangs while it
cleans up. Then, after a grace period, the process ends, with the test's name and all stacks. pytest-xdist would
replace that process; with --dist loadgroup the new one runs the same test again, or waits for ever for a second test
before it begins its last. So processes are not replaced: the others finish what they have, and the run is over.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from typing import Any

import gevent
import pytest
import pytest_timeout
from gevent.util import format_run_info
from greenlet import greenlet


def grace(limit: float) -> float:
    """Seconds beyond a test's limit, for its failure to be reported and for fixtures to clean up."""
    return 5.0 + limit / 2


def stretch() -> float:
    """By how much a limit is longer, because so many processes wait for this machine's processors; at most 5."""
    return min(5.0, max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1))))


_ending = pytest.StashKey[threading.Timer]()


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("xdist") and config.option.maxworkerrestart is None:
        config.option.maxworkerrestart = "0"


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """pytest-timeout asks for this as a test begins, fixtures included, and calls ``item.cancel_timeout``."""
    main = gevent.getcurrent()
    limit = settings.timeout * stretch()
    is_over = False

    def cancel() -> None:
        nonlocal is_over
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def fail(in_main: bool = True) -> None:
        if not is_over:
            failure = pytest.fail.Exception(f"still running after {limit:.0f} s")
            if in_main:
                raise failure
            main.throw(failure)

    def interrupt(*_: object) -> None:
        if pytest_timeout.is_debugging():
            return
        sys.stderr.write(_stacks(main))
        if gevent.getcurrent() is main:
            fail()
        else:
            gevent.get_hub().loop.run_callback(fail, False)

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit)
    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    ending = item.stash[_ending] = threading.Timer(limit + grace(limit), _end_the_process, [item, limit, main])
    ending.daemon = True
    ending.start()
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure is the end of the limit; pytest-timeout's cancelling comes only when pytest has put it into words.

    That takes a while on a busy machine, and an exception in it would end the whole run.
    """
    if call.excinfo is not None and (cancel := getattr(item, "cancel_timeout", None)) is not None:
        cancel()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # Not with pytest-timeout's cancelling: that comes with the first failure, before fixtures clean up.
    try:
        return (yield)
    finally:
        if _ending in item.stash:
            item.stash[_ending].cancel()


def _stacks(main: greenlet) -> str:
    """All of them; gevent leaves out the main greenlet's, in which tests run, while it waits."""
    lines = ["The test waits here:\n", *traceback.format_stack(main.gr_frame)] if main.gr_frame else []
    return "".join([*lines, "\n".join(format_run_info()), "\n"])


def _end_the_process(item: pytest.Item, limit: float, main: greenlet) -> None:
    if pytest_timeout.is_debugging():
        return
    try:
        item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
        sys.stderr.write(f"{item.nodeid} is still running {grace(limit):g} s after its time limit\n{_stacks(main)}")
        sys.stderr.flush()
    finally:
        os._exit(1)
