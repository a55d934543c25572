"""``pytest tests/faults --seed=7 --nsq=real``: other faults than those of ``make test``."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="the seed of test_campaign")
