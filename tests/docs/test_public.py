"""The public surface is the one that is written down, so that a change of it is seen in review."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts import run_script

#: The directives of the site list the metrics, and need Sphinx.
pytestmark = pytest.mark.site


def test_the_public_surface_is_the_one_written_down() -> None:
    """In a process of its own, without the longer timeouts of the tests."""
    found = run_script("from tests.support.surface import surface\nprint(surface(), end='')")
    assert found == (Path(__file__).parent / "public.txt").read_text().splitlines(), (
        "what users have has changed: run make generate, and see whether CHANGES.rst needs a line"
    )
