"""docs/reader.rst says what is so: every hook, every count of stats(), code that compiles."""

from inspect import signature

from gnsq_like import Reader
from tests.support.pages import blocks, page

PAGE = page("reader.rst")


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
