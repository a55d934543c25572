"""A misspelt attribute is refused, and the right one is not."""

from __future__ import annotations

import pytest

from gnsq_like.runtime.known_attributes import KnownAttributes


class Pump(KnownAttributes):
    def __init__(self) -> None:
        self.topic = "t"
        self._limit = 1
        self._seal(Pump, ["timeout"])

    @property
    def max_in_flight(self) -> int:
        return self._limit

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        self._limit = value

    @property
    def size(self) -> int:
        return 1


class Special(Pump):
    def __init__(self) -> None:
        super().__init__()
        self.own = 1


def test_a_new_attribute_is_refused_with_the_likely_name() -> None:
    pump = Pump()
    with pytest.raises(
        AttributeError, match=r"a Pump has no attribute 'max_inflight'; did you mean max_in_flight"
    ) as e:
        pump.max_inflight = 5  # type: ignore[attr-defined]
    assert e.value.name == "max_inflight"
    with pytest.raises(AttributeError, match=r"'zzz'$"):
        pump.zzz = 5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'timeout'; it is an option, and given to the constructor"):
        pump.timeout = 5  # type: ignore[attr-defined]
    assert not hasattr(pump, "max_inflight")


def test_its_attributes_and_properties_can_be_set() -> None:
    pump = Pump()
    pump.topic = "u"
    pump.max_in_flight = 5
    pump._limit += 1
    assert (pump.topic, pump.max_in_flight) == ("u", 6)
    with pytest.raises(AttributeError, match="setter"):
        pump.size = 5  # type: ignore[misc]


def test_a_subclass_may_have_attributes_of_its_own() -> None:
    special = Special()
    special.other = 2  # type: ignore[attr-defined]
    assert special.own == 1
