"""The plan: its checks, its limits, its way through JSON, and the flags made from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.workers.plan import Plan, flags


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": 0},
        {"stop_timeout": -1.0},
        {"handler_timeout": float("inf")},
        {"max_memory": "much"},
        {"health": "host"},
        {"health": "unix:/x"},
    ],
)
def test_a_wrong_value_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        Plan("module:load", **wrong)


def test_it_comes_through_json_unchanged() -> None:
    plan = Plan("module:load", ("a", "b"), patch=True, processes=3, max_memory="300M", handler_timeout=2.5)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("given", "seconds"),
    [({}, 120.0), ({"handler_timeout": 30.0}, 35.0), ({"handler_timeout": 30.0, "heartbeat_timeout": 4.0}, 4.0)],
)
def test_the_heartbeat_timeout_follows_that_of_handlers(given: Any, seconds: float) -> None:
    assert Plan("module:load", **given).silence == seconds


def test_each_flag_has_a_type_and_a_text() -> None:
    found = {flag.name: flag for flag in flags()}
    assert found["processes"].kind is int
    assert found["stop_timeout"].kind is float
    assert found["log_json"].kind is bool
    assert found["health"].kind is str
    assert "loader" not in found
    assert all(flag.help.endswith(".") for flag in found.values())
