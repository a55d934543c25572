"""The blocks of the Reader's and the Producer's pages, and of most guides, run, each as a program: but for addresses
and paths as it stands, after what the page has defined and made before it. A Reader handles a message, and ends at
SIGINT.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gnsq_like.testing import RunningNsqd, running_nsqd, running_nsqlookupd
from tests.support.daemons import wait_for
from tests.support.pages import GUIDES, blocks, page, replaced
from tests.support.scripts import ROOT

pytestmark = pytest.mark.commands

PAGES = ("reader.rst", "producer.rst", "logging.rst", *GUIDES)
CASES = [
    pytest.param(
        name, number, marks=[pytest.mark.sample] if name in ("reader.rst", "producer.rst") and not number else []
    )
    for name in PAGES
    for number in range(len(blocks(page(name))))
]

#: What a statement of an earlier block does that opens a connection or never ends.
_RUNS = re.compile(r"\.run\(|\brun\(|publish|\.close\(|^with |^for ")
BODY = b'{"id": 1, "user": "ada", "page": "/home"}'
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def program(name: str, number: int) -> str:
    """Block ``number`` of a page, after the statements of earlier ones that only define or make something."""
    *before, block = blocks(page(name))[: number + 1]
    statements = [statement for each in before for statement in ast.parse(each).body]
    made = [
        ast.unparse(statement)
        for statement in statements
        if isinstance(statement, ast.FunctionDef) or not _RUNS.search(ast.unparse(statement))
    ]
    return "\n".join([*made, block])


def is_handled(nsqd: RunningNsqd) -> bool:
    """Whether some channel has had a message, and has none left."""
    channels = [channel for topic in nsqd.topics().values() for channel in topic.channels.values()]
    return any(channel.messages and not channel.left for channel in channels)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_block_runs(name: str, number: int, tmp_path: Path) -> None:
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
    ):
        meant = {
            "127.0.0.1:4150": nsqd.tcp_address,
            "127.0.0.1:4161": lookupd.http_address,
            "127.0.0.1:8001": "127.0.0.1:0",
            "/var/lib/clicks": str(tmp_path),
        }
        text = replaced(program(name, number), meant)
        (tmp_path / "program.py").write_text(text)
        for topic in ("clicks", "views", "event.login"):
            nsqd.publish(topic, BODY)
        command = [sys.executable, "-W", "error", "program.py"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                wait_for(lambda: process.poll() is not None or is_handled(nsqd), "the end or a message", 100)
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=100)
            finally:
                process.kill()
        # A pulled Reader, and a wait for a group, end with the KeyboardInterrupt.
        assert process.returncode in (0, -signal.SIGINT), errors
        assert "Error" not in errors
