"""One way of each: who reads /stats, who says that no daemon has answered, and who starts daemons."""

import ast
from pathlib import Path

import gnsq_like

ROOT = Path(gnsq_like.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}


def modules_with(kind: type[ast.AST], text: str) -> set[str]:
    """Those with a statement or expression of this kind, whose first line contains the text."""
    return {
        name
        for name, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, kind) and text in ast.unparse(node).partition("\n")[0]
    }


def test_one_module_reads_what_nsqds_count() -> None:
    """The Reader's discovery compares the names of topics only, and may not import this room."""
    assert modules_with(ast.Subscript, "stats['topics']") == {"cluster/figures.py", "discovery/lookupd_poller.py"}


def test_one_function_says_that_nobody_answered() -> None:
    assert modules_with(ast.FunctionDef, "def require_any(") == {"cluster/rounds.py"}


def test_daemons_are_started_in_one_way() -> None:
    """``workers/process.py`` starts Readers, which are no daemons."""
    assert modules_with(ast.Call, "subprocess.Popen(") == {"server/daemon_process.py", "workers/process.py"}
