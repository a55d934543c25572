"""A command that runs readers logs to stderr, unless the application has decided otherwise."""

from __future__ import annotations

import sys

import pytest

from tests.support.scripts import ROOT, run_beside

CODE = """
import logging
import gnsq_like
from gnsq_like.contrib.shared.logs import log_to_stderr_unless_configured

{}
log_to_stderr_unless_configured()
logging.getLogger("gnsq_like.reader").warning("it failed")
"""


@pytest.mark.parametrize(
    ("configured", "stderr"),
    [
        ("", "WARNING:gnsq_like.reader:it failed\n"),
        ("logging.basicConfig(level='ERROR')", ""),
        ("logging.getLogger('gnsq_like').addHandler(logging.FileHandler('/dev/null'))", ""),
    ],
)
def test_warnings_are_seen_unless_the_log_is_configured(configured: str, stderr: str) -> None:
    done = run_beside([sys.executable, "-c", CODE.format(configured)], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, stderr)


def test_the_package_alone_writes_nothing() -> None:
    code = "import logging, gnsq_like; logging.getLogger('gnsq_like.reader').error('it failed')"
    done = run_beside([sys.executable, "-c", code], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
