"""CONTRIBUTING.rst agrees with the tree: every file, make target, support module and name of the recipes exists."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import DOCS, section

ROOT = DOCS.parent
PAGE = (ROOT / "CONTRIBUTING.rst").read_text()

QUOTED = sorted(set(re.findall(r"``([^`\s]+)``", PAGE)))
PATHS = [text for text in QUOTED if "/" in text and "NAME" not in text]
#: ``module.name`` of tests/support.
SUPPORT = [
    text.split(".")
    for text in QUOTED
    if re.fullmatch(r"\w+\.\w+", text) and (ROOT / f"tests/support/{text.partition('.')[0]}.py").exists()
]
TARGETS = sorted(set(re.findall(r"make ([a-z-]+)``", PAGE)))
RECIPES = re.sub(r"``\S+\.rst``", "", section(PAGE, "Recipes"))
#: Names that recipes tell to change: ``_option``, HELP, ``Reader.stats``.
NAMES = sorted(
    {
        name
        for text in re.findall(r"``(\w+(?:\.\w+)?)``|\b([A-Z_]{4,})\b", RECIPES)
        for name in "".join(text).split(".")
        if not name.startswith("NAME") and name not in {"IDENTIFY", "AUTH", "HTTP"}
    }
)
SOURCES = "\n".join(path.read_text() for room in ("gnsq_like", "tests/server") for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_named_exists(path: str) -> None:
    assert any((root / path).exists() for root in (ROOT, ROOT / "gnsq_like", ROOT / "gnsq_like/server"))


@pytest.mark.parametrize(("module", "name"), SUPPORT)
def test_a_support_function_that_is_named_exists(module: str, name: str) -> None:
    text = (ROOT / f"tests/support/{module}.py").read_text()
    assert re.search(rf"^(?:def |class |){name}\b", text, re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_a_recipe_exists(name: str) -> None:
    assert re.search(rf"\b{name}\b", SOURCES)


def test_the_number_of_processes_is_that_of_the_makefile() -> None:
    (default,) = re.findall(r"^PROCESSES \?= (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"(default: {default})" in PAGE


def test_the_page_names_things() -> None:
    assert {"gnsq_like/options/options.py", "tests/conftest.py"} & set(PATHS)
    assert ["peer", "scripted_nsqd"] in SUPPORT
    assert {"test", "lint", "test-all"} <= set(TARGETS)
    assert {"_option", "NOT_AS_TEXT", "Strike", "stats"} <= set(NAMES)
