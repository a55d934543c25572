"""docs/web.rst says what is so: its code runs, its settings and metrics are those that there are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gnsq_like import Producer, Reader
from gnsq_like.contrib import flask as contrib_flask
from gnsq_like.contrib.flask.extension import _OWN
from gnsq_like.contrib.prometheus import Metrics
from tests.support.pages import blocks, page

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("web.rst")
BLOCKS = blocks(PAGE)


def block(start: str) -> str:
    """The one block in which this line stands."""
    [found] = [each for each in BLOCKS if start in each]
    return found


def test_the_application_and_its_tests_run():
    """In a process of their own: the blocks are one application, which prints what it consumes."""
    application = block("def create_app():").replace(
        "    print(message.body)", "    import json\n    archived.append(json.loads(message.body))"
    )
    recording = block("def test_a_click_is_published").replace(
        'app = create_app()          # with app.config["NSQ_RECORD"] = True before init_app',
        "app = create_app()",
    )
    assert "create_app()          #" not in recording
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
            "print('both passed')",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == ("both passed\n", "")


@pytest.mark.parametrize("source", BLOCKS)
def test_every_block_compiles(source):
    compile(source, "docs/web.rst", "exec")


def test_the_lines_for_gunicorn_are_those_that_are_tested():
    from tests.support.web import CONF

    assert "".join(CONF.split()) == "".join(block("WorkerReaders").split())
    namespace: dict[str, object] = {}
    exec(block("WorkerReaders"), namespace)
    assert callable(namespace["post_worker_init"])


def test_the_lines_about_metrics_run():
    registry = CollectorRegistry()
    namespace = {
        "NSQ": contrib_flask.NSQ,
        "Reader": Reader,
        "handler": print,
        "producer": Producer("127.0.0.1:4150"),
        "Registered": lambda: Metrics(registry),
    }
    exec(block("metrics.timed").replace("Metrics()", "Registered()"), namespace)
    told = set(re.findall(r"``(nsq_(?:reader|producer|outbox)_\w+)``", PAGE))
    suffixes = {"counter": "_total"}
    assert told == {metric.name + suffixes.get(metric.type, "") for metric in registry.collect()}


def test_the_modules_own_table_is_the_same():
    told = set(re.findall(r"``(nsq_(?:reader|producer|outbox)_\w+)``", PAGE))
    table = sys.modules[Metrics.__module__].__doc__ or ""
    assert set(re.findall(r"^(nsq_\w+)", table, re.MULTILINE)) == told


def test_every_setting_of_flasks_own_is_explained():
    for name in _OWN:
        assert f"``NSQ_{name}``" in PAGE


def test_what_is_named_exists():
    for name in re.findall(r"``nsq\.(\w+)", PAGE):
        assert hasattr(contrib_flask.NSQ, name), name
    for flag in re.findall(r"``(--health|--stop-timeout)", PAGE):
        assert flag in (ROOT / "gnsq_like/contrib/flask/commands.py").read_text()
