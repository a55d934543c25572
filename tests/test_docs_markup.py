"""Each page of the documentation is sound reStructuredText: no table, link or role that comes out as an error."""

from pathlib import Path

import pytest
from docutils.core import publish_doctree
from docutils.utils import Reporter

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.rst", ROOT / "CHANGES.rst", *sorted((ROOT / "docs").glob("*.rst"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_faults(page, capsys):
    settings = {"report_level": Reporter.WARNING_LEVEL, "halt_level": 6, "syntax_highlight": "none"}
    publish_doctree(page.read_text(), source_path=page.name, settings_overrides=settings)
    assert capsys.readouterr().err == ""
