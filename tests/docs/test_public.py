"""The public surface is the one that is written down, so that a change of it is seen in review."""

from __future__ import annotations

import pytest

#: The directives of the site list the metrics, and need Sphinx.
pytestmark = pytest.mark.site


def test_the_public_surface_is_the_one_written_down() -> None:
    from tests.support.surface import PATH, surface

    assert surface().splitlines() == PATH.read_text().splitlines(), (
        "what users have has changed: run make generate, and see whether CHANGES.rst needs a line"
    )
