"""docs/producer.rst agrees with the code: the Producer's own options are there, and its code compiles."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gnsq_like import Producer
from gnsq_like.options import DiscoveryOptions, ProducerOptions
from tests.support.pages import blocks, page

PAGE = page("producer.rst")
OWN = sorted({option.name for option in fields(ProducerOptions)} - {option.name for option in fields(DiscoveryOptions)})


@pytest.mark.parametrize("name", OWN)
def test_an_option_of_its_own_is_explained(name: str) -> None:
    assert f"``{name}" in PAGE


def test_every_count_is_explained() -> None:
    for name in set(Producer("127.0.0.1:4150").stats()) - {"state"}:
        assert f"``{name}``" in PAGE


def test_the_examples_compile() -> None:
    assert len(blocks(PAGE)) >= 4
    for block in blocks(PAGE):
        compile(block, "docs/producer.rst", "exec")
