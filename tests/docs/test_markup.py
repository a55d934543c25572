"""Each page of the documentation is sound reStructuredText: no table, link or role that comes out as an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, directives, roles
from docutils.utils import Reporter

from tests.support.pages import DOCS

ROOT = DOCS.parent
#: Sphinx's and our own, which the pages of docs/ may use; an index shows the README, and knows docutils' own only.
ROLES = ("doc", "ref")
DIRECTIVES = (
    *("toctree", "autoclass", "autoexception", "autofunction", "automodule", "py:class", "click"),
    *("options", "metrics", "client-flags", "json-values"),
)


class AnyOption(dict[str, Callable[[str], str]]):
    def __missing__(self, name: str) -> Callable[[str], str]:
        return directives.unchanged


class Ignored(Directive):
    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = AnyOption(any=directives.unchanged)

    def run(self) -> list[Any]:
        return []


PAGES = [*sorted(ROOT.glob("*.rst")), *sorted(DOCS.rglob("*.rst"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_a_page_has_no_faults(page, capsys, monkeypatch):
    if DOCS in page.parents:
        for role in ROLES:
            monkeypatch.setitem(roles._roles, role, roles.GenericRole(role, nodes.inline))
        for directive in DIRECTIVES:
            monkeypatch.setitem(directives._directives, directive, Ignored)
    settings = {"report_level": Reporter.WARNING_LEVEL, "halt_level": 6, "syntax_highlight": "none"}
    publish_doctree(page.read_text(), source_path=str(page), settings_overrides=settings)
    assert capsys.readouterr().err == ""
