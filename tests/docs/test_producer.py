"""docs/producer.rst agrees with the code: the Producer's own options are there, and its code compiles."""

from __future__ import annotations

import re
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


#: Defaults that are words in the table.
IN_WORDS = {
    "max_pending_bytes": "64 MiB",
    "max_msg_bytes": "1 MiB",
    "max_body_bytes": "5 MiB",
    "max_batch_bytes": "1 MiB",
}


def test_the_table_has_the_options_of_its_own_and_their_defaults() -> None:
    table = PAGE.partition(".. list-table::")[2]
    rows = re.findall(r"^   \* - ``(.*)``\n     - (.*)\n     -.*\n     - .*$", table, re.MULTILINE)
    options = ProducerOptions()
    values = {name: getattr(options, name) for name in [*OWN, "max_redial_delay"]}
    words = {name: f"``{value:g}``" if isinstance(value, float) else f"``{value!r}``" for name, value in values.items()}
    assert dict(rows) == words | IN_WORDS
    for name, word in IN_WORDS.items():
        assert values[name] == int(word.partition(" ")[0]) * 2**20


def test_every_count_is_explained() -> None:
    for name in set(Producer("127.0.0.1:4150").stats()) - {"state"}:
        assert f"``{name}``" in PAGE


def test_the_examples_compile() -> None:
    assert len(blocks(PAGE)) >= 4
    for block in blocks(PAGE):
        compile(block, "docs/producer.rst", "exec")
