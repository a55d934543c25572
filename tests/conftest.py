"""How the tests run: hypothesis profiles, what needs a real nsqd, and an end for tests that hang."""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.time_limit import pytest_configure, pytest_runtest_protocol, pytest_timeout_set_timer

__all__ = ["pytest_configure", "pytest_runtest_protocol", "pytest_timeout_set_timer"]

# The default repeats the same examples in every run, so that a red run is red again; the other one searches.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("GNSQ_LIKE_HYPOTHESIS", "ci"))


#: Marks of tests that run only when asked for: by -m with the mark's name, or by the test's own name; ``faults`` also
#: by --seed.
ON_REQUEST = ("browser", "commands", "faults", "package", "peers", "spark_long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out(config, items)
    _group(config, items)
    if shutil.which("nsqd") and shutil.which("nsqlookupd"):
        return
    skip = pytest.mark.skip(reason="no nsqd and nsqlookupd on PATH")
    for item in items:
        if item.get_closest_marker("real_nsqd"):
            item.add_marker(skip)


def _group(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests: a module stays in one, and so does what uses the shared session of
    Spark; long tests start a Spark of their own, and go anywhere."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            module = item.path.relative_to(config.rootpath)
            group = str(module)
            if "spark" in module.parts:
                is_alone = item.get_closest_marker("spark_long") and "spark" not in getattr(item, "fixturenames", ())
                group = item.nodeid if is_alone else "spark"
            item.add_marker(pytest.mark.xdist_group(group))


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what runs only on request, and was not asked for."""
    asked = config.getoption("markexpr")
    if config.getoption("seed", None) is not None:
        asked += " faults"
    named = [Path(each).name for each in config.args if "::" in each]
    left_out = [
        item
        for item in items
        if not any(each in item.nodeid for each in named)
        and any(item.get_closest_marker(mark) and mark not in asked for mark in ON_REQUEST)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """For what drives Python to its recursion limit: finalizers of others' garbage would meet the limit there."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
