"""Fixtures of the tests of http."""

from __future__ import annotations

import pytest

from tests.support.hub import PLACES, Place


@pytest.fixture(params=list(PLACES.values()), ids=list(PLACES))
def anywhere(request: pytest.FixtureRequest) -> Place:
    """Each place that requests are made from."""
    place: Place = request.param
    return place
