"""Every section of docs/internals that the code cites is there."""

import re
import subprocess

import pytest

from tests.support.pages import DOCS

ROOT = DOCS.parent
INTERNALS = "\n".join(page.read_text() for page in sorted((DOCS / "internals").glob("*.rst")))
#: Numbers of headings ("1.12 Delivery") and of list items ("8.51").
NUMBERS = set(re.findall(r"^(?:\* )?\**(S?\d+(?:\.\d+)?)[.\s*]", INTERNALS, re.MULTILINE))


def citations() -> dict[str, list[str]]:
    """For each section number that is cited, the files that cite it."""
    cited: dict[str, list[str]] = {}
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for name in listed.split():
        path = ROOT / name
        text = path.read_text() if path.exists() else ""
        for line in re.findall(r"docs/internals (S?\d[\d., toS]*)", text):
            for number in re.findall(r"S?\d+(?:\.\d+)?", line):
                cited.setdefault(number, []).append(name)
    return cited


CITED = citations()


@pytest.mark.parametrize("number", sorted(CITED))
def test_a_cited_section_exists(number: str) -> None:
    assert number in NUMBERS, f"cited by {CITED[number]}"


def test_the_search_finds_citations_and_sections() -> None:
    assert {"1.12", "1.3", "3.4"} <= CITED.keys()
    assert {"1.12", "8.51", "S2"} <= NUMBERS
