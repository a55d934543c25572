"""docs/workers.rst: its options, metrics and signals are those that there are."""

from __future__ import annotations

import re

import pytest

from gnsq_like.contrib.workers import master, pages
from gnsq_like.contrib.workers.plan import flags
from tests.support.commands import gnsq_like
from tests.support.pages import blocks, page, section

PAGE = page("workers.rst")
HEALTH = section(PAGE, "Health, metrics, logs")


@pytest.mark.parametrize("name", [flag.name.replace("_", "-") for flag in flags()])
def test_each_option_is_on_the_page(name: str) -> None:
    assert re.search(rf"--{name}\b", PAGE)


def test_each_option_of_the_page_exists() -> None:
    known = gnsq_like("run", "--help").stdout
    others = {"--init", "--module", "--app", "--noreload"}
    assert {name for name in re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE) if name not in known} <= others


def rows(text: str) -> list[tuple[str, str]]:
    """The metrics of a table: name and kind."""
    return re.findall(r"^(?:``)?(nsq_\w+?)(?:``)?\s+(gauge|counter)", text, re.MULTILINE)


def test_the_metrics_are_those_that_there_are() -> None:
    collector = pages.Collector({"workers": [], "wanted": 1, "restarts": {}})
    made = [
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in collector.collect()
    ]
    assert sorted(rows(HEALTH)) == sorted(made)
    assert sorted(rows(pages.__doc__ or "")) == sorted(made)


def test_the_reasons_of_restarts_are_those_that_there_are() -> None:
    for text in (HEALTH, pages.__doc__ or ""):
        listed = re.search(r"by (?:``)?reason(?:``)?: ([\w, ]+)", text)
        assert listed
        assert listed[1].strip().split(", ") == [str(reason) for reason in pages.REASONS]


def test_the_signals_are_those_that_the_master_handles() -> None:
    listed = set(re.findall(r"SIG[A-Z0-9]+", section(PAGE, "Signals")))
    head = re.findall(r"^((?:[A-Z0-9]+ )*[A-Z0-9]+)  +\w", master.__doc__ or "", re.MULTILINE)
    assert listed == {f"SIG{name}" for line in head for name in line.split()}


@pytest.mark.parametrize("source", blocks(PAGE))
def test_the_code_compiles(source: str) -> None:
    compile(source, "workers.rst", "exec")
