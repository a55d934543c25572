"""How the tests run: what needs a real nsqd, and in which process; hypothesis profiles (tests/support/scale.py), tests
that run on request only (summary.py there), and an end for tests that hang (time_limit.py there)."""

import gc
import logging
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support import scale
from tests.support.daemons import is_after_1_3_0
from tests.support.hub_errors import pytest_runtest_teardown
from tests.support.summary import (
    leave_out,
    pytest_ignore_collect,
    pytest_sessionfinish,
    pytest_sessionstart,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.support.time_limit import (
    pytest_configure,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_timeout_set_timer,
)

#: Hooks that pytest takes from here; scale has the hypothesis profiles.
__all__ = [
    "pytest_configure",
    "pytest_ignore_collect",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_sessionstart",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "pytest_timeout_set_timer",
    "scale",
]


# A shell that starts the tests in the background has SIGINT ignored, and so would be all processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """What runs in the tests' process sets the level of the whole package: a daemon that is told one, a command."""
    log = logging.getLogger("gnsq_like")
    level, handlers = log.level, log.handlers[:]
    yield
    log.setLevel(level)
    log.handlers[:] = handlers


_folders = pytest.StashKey[dict[Path, pytest.Collector]]()


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Collect each folder once: where a file of ``tests`` itself is listed between two of a folder, pytest makes a
    second collector of the folder, and 9.1 gives its tests none of the fixtures of its conftest.py."""
    found = yield
    return found and parent.config.stash.setdefault(_folders, {}).setdefault(path, found)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hardly anything that is imported here is ever garbage; looking for it again and again would take a third of the
    time that importing takes, and whoever looks for garbage later would look at all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items)
    _group(config, items)
    are_there = shutil.which("nsqd") and shutil.which("nsqlookupd")
    for item in items:
        for marker in item.iter_markers("real_nsqd"):
            if not are_there:
                item.add_marker(pytest.mark.skip(reason="no nsqd and nsqlookupd on PATH"))
            elif "after" in marker.kwargs and not is_after_1_3_0():
                item.add_marker(pytest.mark.skip(reason="the nsqd on PATH is none after 1.3.0"))


def _group(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests: a module stays in one, and so does what uses the shared session of
    Spark. Long tests start a Spark of their own, and simulated ones a process; they go anywhere."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            group = item.nodeid.partition("::")[0]
            if item.get_closest_marker("spark"):
                group = "spark"
            elif item.get_closest_marker("spark_long") or group.startswith("tests/simulation/"):
                group = item.nodeid
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """For what drives Python to its recursion limit: finalizers of others' garbage would meet the limit there."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
