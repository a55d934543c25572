"""A scripted nsqd, and what a connection to it reports."""

from collections.abc import Iterator

import pytest

from tests.support.connected import Watcher
from tests.support.peer import ScriptedNsqd, scripted_nsqd


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with scripted_nsqd() as server:
        yield server


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()
