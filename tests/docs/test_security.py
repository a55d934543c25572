"""docs/security.rst says what is so: every option, every kind of TLSError, code that compiles."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from gnsq_like.errors import TLSError
from gnsq_like.options import ConnectionOptions
from tests.support.pages import blocks, page

PAGE = page("security.rst")
OPTIONS = [option.name for option in fields(ConnectionOptions)]


@pytest.mark.parametrize("name", OPTIONS[OPTIONS.index("tls_v1") : OPTIONS.index("topology_region")])
def test_every_option_is_there(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)


def test_every_kind_of_a_tls_error_is_explained() -> None:
    table = PAGE.partition("``kind``")[2].partition("Compression\n")[0]
    kinds = {*re.findall(r"``([a-z_]+)``  ", table), "not_yet_valid"} - {"kind"}
    assert kinds == set(TLSError.TEXTS)


def test_the_examples_compile() -> None:
    assert len(blocks(PAGE)) >= 4
    for block in blocks(PAGE):
        compile(block.replace("Reader(...,", "Reader("), "docs/security.rst", "exec")
