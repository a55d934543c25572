"""The daemons under test: a test with ``kind``, ``nsqd`` or ``lookupd`` runs with ours and with the real one."""

from collections.abc import Iterator

import pytest

from tests.support.daemons import KINDS, Kind, Running, running_nsqd, running_nsqlookupd


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture(scope="module")
def nsqd(kind: Kind) -> Iterator[Running]:
    """An nsqd with NSQ's defaults, shared by the tests of a module, each with its own topics."""
    with running_nsqd(kind) as running:
        yield running


@pytest.fixture
def lookupd(kind: Kind) -> Iterator[Running]:
    """An empty nsqlookupd."""
    with running_nsqlookupd(kind) as running:
        yield running
