"""Every input of the corpora, and some random ones, in every run; ``make fuzz`` searches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, TARGETS

#: How many for each target.
_CHANGED = 200

FILES = sorted(CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_of_the_corpus(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_random_changes_of_its_inputs(name: str) -> None:
    draw = random.Random(name)
    seeds = [path.read_bytes() for path in FILES if path.parent.name == name]
    assert seeds, "a target needs inputs to begin with"
    for _ in range(_CHANGED):
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.randint(0, 5)):
            at = draw.randrange(len(data) + 1)
            data[at : at + draw.choice([0, 1, 4])] = draw.randbytes(draw.choice([0, 1, 4]))
        TARGETS[name](bytes(data))
