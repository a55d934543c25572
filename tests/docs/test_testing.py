"""docs/testing.rst is right: its code runs, and its tables are complete."""

import re
import textwrap
from pathlib import Path

import gnsq_like
from tests.support.pages import blocks, page

pytest_plugins = ["pytester"]

ROOT = Path(gnsq_like.__file__).resolve().parents[1]
PAGE = page("testing.rst")
BLOCKS = blocks(PAGE)


def test_the_tests_on_the_page_pass(pytester, monkeypatch):
    """Those for pytest and for unittest, each block as a file of its own; the scripts are run as they are."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    tests = [block for block in BLOCKS if re.search(r"^ *def test_", block, re.MULTILINE)]
    scripts = [block for block in BLOCKS if block not in tests]
    assert (len(tests), len(scripts)) == (6, 2)
    pytester.makepyfile(**{f"test_block_{number}": block for number, block in enumerate(tests)})
    pytester.makepyfile(
        test_scripts="\n".join(
            f"def test_script_{number}():\n{textwrap.indent(block, '    ')}" for number, block in enumerate(scripts)
        )
    )
    result = pytester.runpytest_subprocess("-p", "gnsq_like.testing.plugin", "-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=sum(len(re.findall(r"def test_", block)) for block in tests) + len(scripts))
