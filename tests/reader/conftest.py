"""A scripted nsqd."""

from collections.abc import Iterator

import pytest

from tests.support.peer import ScriptedNsqd, scripted_nsqd


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with scripted_nsqd() as server:
        yield server
