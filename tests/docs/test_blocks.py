"""Every Python block on the pages is whole: it compiles as it stands, and names nothing that its page does not have.

The programs of the tutorial and the guides run in ``test_programs.py``, those for tests in ``test_testing.py``. Here
the statements of the Reader's, the Producer's and the security page run that open no connection, page by page.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import DOCS, blocks

PAGES = {
    str(path.relative_to(DOCS)): found
    for path in sorted(DOCS.rglob("*.rst"))
    if "internals" not in path.parts and (found := blocks(path.read_text()))
}

#: Names that the text around a block introduces: an application's own, and a session of Spark.
GIVEN = {
    "django.rst": {"logger"},
    "outbox.rst": {"Booking", "LastBooked", "Order"},
    "tasks.rst": {"Order"},
    "pipeline.rst": {"spark"},
    "spark.rst": {"spark", "frame", "staging", "path", "checkpoint"},
    "web.rst": {"Reader", "app", "archived", "handler", "producer", "reader"},
}

#: What a statement does that needs a daemon, never ends, or reads a file of the machine's.
NEEDS_MORE = re.compile(r"\.run\(|\brun\(|publish|\.close\(|^with |^for |load_cert|create_default_context|=context")


@pytest.mark.parametrize("name", PAGES)
def test_each_block_is_whole(name: str) -> None:
    for block in PAGES[name]:
        compile(block, name, "exec")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "json", "-"],
        input="\n".join(PAGES[name]),
        capture_output=True,
        text=True,
        check=False,
    )
    undefined = {re.findall("`(.*?)`", fault["message"])[0] for fault in json.loads(done.stdout)}
    assert undefined == GIVEN.get(name, set())


@pytest.mark.parametrize("name", ["reader.rst", "producer.rst", "security.rst"])
def test_what_opens_no_connection_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    ran = 0
    for block in PAGES[name]:
        for statement in ast.parse(block).body:
            source = ast.unparse(statement)
            is_definition = isinstance(statement, ast.FunctionDef | ast.Import | ast.ImportFrom)
            if is_definition or not NEEDS_MORE.search(source):
                exec(compile(ast.Module([statement], []), name, "exec"), namespace)
                ran += 1
    assert ran > 5
