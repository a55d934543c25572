"""docs/reader.rst says what is so: every option with its default, every count of stats(), code that compiles."""

import re
from dataclasses import fields
from inspect import signature

import pytest

from gnsq_like import Reader
from gnsq_like.options import ReaderOptions
from tests.support.pages import blocks, page

PAGE = page("reader.rst")

#: Defaults that are words in the table.
IN_WORDS = {"client_id", "hostname", "user_agent", "max_frame_bytes"}


def option_rows():
    table = PAGE.partition(".. list-table::")[2]
    rows = re.findall(r"^   \* - (.*)\n     - ?(.*)\n     - ?(.*)\n     - (.*)$", table, re.MULTILINE)
    return {name.strip("`"): (default, unit, meaning) for name, default, unit, meaning in rows[1:]}


def test_every_option_is_in_the_table():
    assert sorted(option_rows()) == sorted(option.name for option in fields(ReaderOptions))


@pytest.mark.parametrize("option", fields(ReaderOptions), ids=lambda option: option.name)
def test_default_and_unit_of_an_option(option):
    default, unit, meaning = option_rows()[option.name]
    value = getattr(ReaderOptions(), option.name)
    if option.name not in IN_WORDS:
        assert default == (f"``{value:g}``" if isinstance(value, float) else f"``{value!r}``")
    is_a_time = option.metadata["kind"] is float and option.name not in ("lookupd_poll_jitter", "rate_limit")
    assert (unit == "s") == is_a_time
    assert len(meaning) > 10
    for choice in option.metadata["choices"]:
        assert f'"{choice}"' in meaning


def test_every_hook_and_every_count_is_explained():
    hooks = [name for name in signature(Reader.__init__).parameters if name.startswith("on_")]
    assert hooks
    stats = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150").stats()
    section = PAGE.partition("Statistics\n")[2].partition("Options\n")[0]
    for name in hooks:
        assert f"``{name}(" in PAGE
    for name in [*stats, "rdy", "share", "in_flight"]:
        assert f"``{name}``" in section


def test_the_examples_compile():
    assert len(blocks(PAGE)) >= 4
    for block in blocks(PAGE):
        source = block.replace("Reader(...,", "Reader(").replace(", ...)", ")")
        compile(source, "docs/reader.rst", "exec")
