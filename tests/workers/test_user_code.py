"""Readers by the names of their modules, and changed code."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnsq_like.workers.plan import CannotLoad
from gnsq_like.workers.user_code import load

MODULE = """
from gnsq_like import Reader

def handle(message):
    pass

def make(channel):
    return Reader("clicks", channel, handle, nsqd_tcp_addresses="127.0.0.1:4150")

one = make("one")
again = one
several = [make("two"), make("three")]
mixed = [make("four"), 5]

class Shop:
    readers = (make("five"),)

def factory():
    yield make("six")

def broken():
    raise ValueError("no database\\nat all")

def leaves():
    raise SystemExit("bye")

number = 7
unhandled = [Reader("clicks", "x", nsqd_tcp_addresses="127.0.0.1:4150")]
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nsqshop.py").write_text(MODULE)
    (tmp_path / "nsqempty.py").write_text("")
    (tmp_path / "nsqbroken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "nsqwrong.py").write_text("def :\n")
    (tmp_path / "nsqleaves.py").write_text("raise SystemExit\n")


@pytest.mark.parametrize(
    ("targets", "channels"),
    [
        (["nsqshop:one"], ["one"]),
        (["nsqshop:several"], ["two", "three"]),
        (["nsqshop:Shop.readers"], ["five"]),
        (["nsqshop:factory()"], ["six"]),
        (["nsqshop:several", "nsqshop:one", "nsqshop:again"], ["two", "three", "one"]),
    ],
)
def test_what_a_name_stands_for(targets: list[str], channels: list[str]) -> None:
    assert [reader.channel for reader in load(*targets)] == channels


def test_a_module_stands_for_all_readers_in_its_variables(tmp_path: Path) -> None:
    (tmp_path / "nsqwhole.py").write_text("from nsqshop import one, again, several, mixed, number, handle\n")
    assert [reader.channel for reader in load("nsqwhole")] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("nsqshop:", "'nsqshop:': no name follows the colon; write nsqshop for all Readers of the module"),
        ("nsqshop:()", "'nsqshop:()': no name follows the colon"),
        ("nsqshop:broken()", "nsqshop:broken() failed: ValueError: no database ("),
        ("nsqshop:leaves()", "nsqshop:leaves() failed: SystemExit: bye ("),
        ("nsqshop:factory", "nsqshop:factory is a function: write nsqshop:factory() for the Readers that it returns"),
        ("nsqshop:handel", "module nsqshop has no handel; did you mean handle?"),
        ("nsqshop:number", "nsqshop:number is no Reader, but int"),
        ("nsqshop:handle()", "nsqshop:handle() failed: TypeError: "),
        ("nsqshop:unhandled", "the reader of clicks/x has no handler"),
        ("nsqempty", "module nsqempty has no Reader in a global variable; name a function: nsqempty:function()"),
        ("nsqmissing", "cannot import nsqmissing: ModuleNotFoundError: No module named 'nsqmissing'"),
        ("nsqbroken", "cannot import nsqbroken: ModuleNotFoundError: No module named 'nothing_of_this_name' ("),
        ("nsqwrong", "cannot import nsqwrong: SyntaxError: invalid syntax (nsqwrong.py, line 1)"),
        ("nsqleaves", "cannot import nsqleaves: SystemExit: "),
        ("shop/readers.py", "shop/readers.py is a file: give a module's name, such as shop.readers"),
        ("./readers.py", "./readers.py is a file: give a module's name, such as readers"),
        ("no module", "'no module' is no module's name"),
        ("", "'' is no module's name"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(target: str, text: str) -> None:
    with pytest.raises(CannotLoad) as caught:
        load(target)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_an_error_names_the_line_of_the_users_code() -> None:
    with pytest.raises(CannotLoad, match=r"nsqbroken\.py, line 1\)$"):
        load("nsqbroken")


def test_a_reader_that_was_started_is_refused() -> None:
    [reader] = load("nsqshop:one")
    reader.start()
    try:
        with pytest.raises(CannotLoad, match="__main__"):
            load("nsqshop:one")
    finally:
        reader.stop(0)
