"""One way of each: who reads /stats, who says that no daemon has answered, and who starts daemons."""

from pathlib import Path

import gnsq_like

ROOT = Path(gnsq_like.__file__).parent


def modules_with(text: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if text in path.read_text()}


def test_one_module_reads_what_nsqds_count() -> None:
    """The Reader's discovery compares the names of topics only, and may not import this room."""
    assert modules_with('stats["topics"]') == {"cluster/figures.py", "discovery/lookupd_poller.py"}


def test_one_function_says_that_nobody_answered() -> None:
    assert modules_with("def require_any(") == {"cluster/rounds.py"}


def test_daemons_are_started_in_one_way() -> None:
    """``workers/process.py`` starts Readers, which are no daemons."""
    assert modules_with("subprocess.Popen(") == {"server/daemon_process.py", "workers/process.py"}
