"""Scripted nsqds, and Producers whose connections are in the hub of the test, or in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsq_like import Producer
from tests.support.nsqds import good_nsqd
from tests.support.peer import PATIENCE, ScriptedNsqd, scripted_nsqd


@pytest.fixture(params=[False, True], ids=["in its hub", "own thread"])
def own_thread(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def make(own_thread: bool) -> Iterator[Callable[..., Producer]]:
    """Makes Producers that are closed at the end."""
    made: list[Producer] = []

    def make(*addresses: str, **options: Any) -> Producer:
        options = {"own_thread": own_thread, "timeout": PATIENCE, **options}
        producer = Producer(list(addresses), **options)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout=0)


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with scripted_nsqd() as server:
        yield server


@pytest.fixture
def other() -> Iterator[ScriptedNsqd]:
    with good_nsqd() as server:
        yield server
