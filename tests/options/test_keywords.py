"""The options as typed keywords: those of the option classes, and mypy knows them."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gnsq_like.options import ProducerOptions, ProducerOptionsDict, ReaderOptions, ReaderOptionsDict
from tests.support import every_option
from tests.support.keywords import PATH, ROOT, generate
from tests.support.scripts import run_beside

EXAMPLE = Path(every_option.__file__)


def test_the_file_is_the_one_that_is_made() -> None:
    assert PATH.read_text() == generate(), "run python -m tests.support.keywords"


@pytest.mark.parametrize(
    ("keywords", "options"), [(ReaderOptionsDict, ReaderOptions), (ProducerOptionsDict, ProducerOptions)]
)
def test_every_option_is_a_keyword(keywords: type, options: type) -> None:
    assert set(keywords.__annotations__) == {option.name for option in fields(options)}


@pytest.mark.parametrize(("name", "options"), [("Reader", ReaderOptions), ("Producer", ProducerOptions)])
def test_the_example_uses_every_option(name: str, options: type) -> None:
    call = re.search(rf"= {name}\((.*?)\n\)", EXAMPLE.read_text(), re.DOTALL)
    assert call
    used = {*re.findall(r"^    (\w+)=", call[1], re.MULTILINE), *every_option.discovery}
    assert {option.name for option in fields(options)} - used == set()


def check(path: Path) -> str:
    """The errors that mypy finds in a program."""
    # With the configuration and the cache of make lint, which is strict for a program outside tests/.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    return run_beside(command, cwd=ROOT).stdout


def test_mypy_knows_every_option(tmp_path: Path) -> None:
    assert check(Path(shutil.copy(EXAMPLE, tmp_path / "program.py"))) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("    max_in_flight=200", "    max_inflight=200", '"max_inflight" for "Reader"'),
        ("    max_age=3600", '    max_age="3600"', 'incompatible type "str"'),
        ('    encoder="json"', '    encoder="jsn"', "incompatible type"),
        (
            "[ReaderArguments]) -> Reader:",
            "[ReaderArguments]) -> Reader:\n    reading('x', on_fail=1)",
            '"on_fail" for',
        ),
    ],
)
def test_mypy_finds_what_is_wrong(tmp_path: Path, right: str, wrong: str, error: str) -> None:
    text = EXAMPLE.read_text()
    assert text.count(right) == 1
    program = tmp_path / "program.py"
    program.write_text(text.replace(right, wrong))
    found = check(program).splitlines()
    assert found, "mypy found nothing"
    assert error in found[0]
