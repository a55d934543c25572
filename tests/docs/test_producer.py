"""docs/producer.rst agrees with the code: every count is explained, and its code compiles."""

from __future__ import annotations

from gnsq_like import Producer
from tests.support.pages import blocks, page

PAGE = page("producer.rst")


def test_every_count_is_explained() -> None:
    for name in set(Producer("127.0.0.1:4150").stats()) - {"state"}:
        assert f"``{name}``" in PAGE


def test_the_examples_compile() -> None:
    assert len(blocks(PAGE)) >= 4
    for block in blocks(PAGE):
        compile(block, "docs/producer.rst", "exec")
