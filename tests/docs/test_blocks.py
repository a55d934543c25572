"""Every Python block on the pages is whole: it compiles as it stands, and names nothing that its page does not have.

The programs of the tutorial and the guides run in ``test_programs.py``, those for tests in ``test_testing.py``. Here
the statements of the security page run that open no connection, and the web page's application.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gnsq_like import Producer, Reader
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.prometheus import Metrics
from tests.support.pages import DOCS, blocks
from tests.support.scripts import run_script

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


def test_each_block_is_whole(tmp_path: Path) -> None:
    for name, found in PAGES.items():
        for each in found:
            compile(each, name, "exec")
        (tmp_path / f"{name.replace('/', '__')}.py").write_text("\n".join(found))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "json"]
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True, check=False)
    undefined: defaultdict[str, set[str]] = defaultdict(set)
    for fault in json.loads(done.stdout):
        undefined[Path(fault["filename"]).stem] |= set(re.findall("`(.*?)`", fault["message"])[:1])
    assert undefined == GIVEN


def test_what_opens_no_connection_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "security.rst"
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


def block(start: str) -> str:
    """The one block of the page about web frameworks in which this is."""
    [found] = [each for each in PAGES["web.rst"] if start in each]
    return found


def test_the_web_application_and_its_tests_run() -> None:
    """In a process of their own: the blocks are one application, which prints what it consumes."""
    application = block("def create_app():").replace(
        "    print(message.body)", "    import json\n    archived.append(json.loads(message.body))"
    )
    recording = re.sub(r"create_app\(\)  +#.*", "create_app()", block("def test_a_click_is_published"))
    # Two applications of one NSQ: the first goes the whole way, the second records.
    program = "\n".join(
        [
            "archived = []",
            application,
            block("def test_a_click_is_archived"),
            "test_a_click_is_archived()",
            "import os; os.environ['NSQ_RECORD'] = 'true'",
            recording,
            "test_a_click_is_published()",
        ]
    )
    assert run_script(program) == []


def test_the_lines_for_gunicorn_are_those_that_are_tested() -> None:
    from tests.support.web import CONF

    assert "".join(CONF.split()) == "".join(block("WorkerReaders").split())


def test_the_lines_about_metrics_run() -> None:
    registry = CollectorRegistry()
    namespace = {
        "NSQ": NSQ,
        "Reader": Reader,
        "handler": print,
        "producer": Producer("127.0.0.1:4150"),
        "Registered": lambda: Metrics(registry),
    }
    exec(block("metrics.timed").replace("Metrics()", "Registered()"), namespace)
    assert list(registry.collect())
