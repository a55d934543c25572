"""What the tests of the documentation read on its pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Packages whose ``__all__`` is public; of gnsq_like.errors all is.
PUBLIC_PACKAGES = [
    "gnsq_like",
    *(f"gnsq_like.{name}" for name in ("admin", "contrib.django", "contrib.flask", "deadletter", "server", "spark")),
    "gnsq_like.testing",
]
#: Guides whose blocks are programs with a Reader.
GUIDES = ("guides/deduplication.rst",)


def page(name: str) -> str:
    """The text of a page of docs/, as "reader.rst"."""
    return (DOCS / name).read_text()


def blocks(text: str, language: str = "python") -> list[str]:
    """The code blocks in a language, at the left margin."""
    found = re.findall(rf"^\.\. code-block:: {language}\n\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def replaced(text: str, meant: Mapping[str, str]) -> str:
    """The text with each of the keys replaced, in one pass: one value may contain another key, as a port 41615 does."""
    return re.sub("|".join(map(re.escape, meant)), lambda found: meant[found[0]], text)


def section(text: str, title: str) -> str:
    """What is under a title that is underlined with ``-``; AssertionError if there is none."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^[^\n]+\n---)", text + "\nx\n---", re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]
