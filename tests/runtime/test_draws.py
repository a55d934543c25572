"""Draws do not depend on the application's random module."""

from __future__ import annotations

import random

from gnsq_like.runtime.draws import draw


def test_draws_neither_follow_nor_disturb_the_random_module() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    first = [draw() for _ in range(20)]
    assert random.random() == expected
    random.seed(5)
    second = [draw() for _ in range(20)]
    assert len({*first, *second}) == 40
    assert all(0 <= each < 1 for each in first)
