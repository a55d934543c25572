"""How the tests run: hypothesis profiles, and what needs a real nsqd."""

import gc
import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The default repeats the same examples in every run, so that a red run is red again; the other one searches.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("GNSQ_LIKE_HYPOTHESIS", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("nsqd") and shutil.which("nsqlookupd"):
        return
    skip = pytest.mark.skip(reason="no nsqd and nsqlookupd on PATH")
    for item in items:
        if item.get_closest_marker("real_nsqd"):
            item.add_marker(skip)


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """For what drives Python to its recursion limit: finalizers of others' garbage would meet the limit there."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
