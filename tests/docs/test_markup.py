"""Each page of the documentation is sound reStructuredText: no table, link or role that comes out as an error."""

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import roles
from docutils.utils import Reporter

from tests.support.pages import DOCS

ROOT = DOCS.parent
#: Roles of Sphinx, which the pages of docs/ may use; an index shows the README, and knows docutils' own only.
SPHINX = ("doc", "ref")
PAGES = [*sorted(ROOT.glob("*.rst")), *sorted(DOCS.rglob("*.rst"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_a_page_has_no_faults(page, capsys, monkeypatch):
    for role in SPHINX if DOCS in page.parents else ():
        monkeypatch.setitem(roles._roles, role, roles.GenericRole(role, nodes.inline))
    settings = {"report_level": Reporter.WARNING_LEVEL, "halt_level": 6, "syntax_highlight": "none"}
    publish_doctree(page.read_text(), source_path=page.name, settings_overrides=settings)
    assert capsys.readouterr().err == ""
