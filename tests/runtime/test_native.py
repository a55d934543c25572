"""Threads, locks, time and random numbers of the operating system, which a simulation can replace."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gnsq_like
from gnsq_like.runtime.native import draw, monotonic, wall_clock

_PATCHED = """
from gevent import monkey
monkey.patch_all()
import threading
from gnsq_like.runtime import native

other = []
lock = native.allocate_lock()
lock.acquire()
native.start_new_thread(lambda: (other.append(native.thread_id()), lock.release()), ())
assert lock.acquire(True, 10)
assert other != [native.thread_id()]
assert native.RLock is not threading.RLock and native.local is not threading.local
"""


def test_they_are_no_greenlets() -> None:
    subprocess.run([sys.executable, "-c", _PATCHED], check=True)


_ROOT = Path(gnsq_like.__file__).parent
_CLOCKS = {"monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns"}
#: Pipelines run in Spark's processes.
_MODULES = [path for path in sorted(_ROOT.rglob("*.py")) if "spark" not in path.relative_to(_ROOT).parts]


def kept(source: str) -> list[str]:
    """Where a module keeps a function of the clock, or of the system's random numbers, instead of calling it."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "os"):
            names = {alias.name for alias in node.names} & (_CLOCKS | {"urandom"})
            found += [f"line {node.lineno}: {name}" for name in sorted(names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in called:
            name = f"{node.value.id}.{node.attr}"
            if (node.value.id == "time" and node.attr in _CLOCKS) or name in ("os.urandom", "random.random"):
                found.append(f"line {node.lineno}: {name}")
    return found


def test_no_module_keeps_the_clock() -> None:
    found = {str(path.relative_to(_ROOT)): kept(path.read_text()) for path in _MODULES}
    assert len(found) > 100
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_search_finds_what_is_kept() -> None:
    assert kept("from time import monotonic, sleep\nfrom os import urandom") == ["line 1: monotonic", "line 2: urandom"]
    assert kept("def f(clock=time.time): pass\nnow = time.monotonic()") == ["line 1: time.time"]
    assert kept("import random\ndraw = random.random\nx = random.random()") == ["line 2: random.random"]


def test_the_defaults_follow_the_module_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    monkeypatch.setattr(time, "time", lambda: 8.0)
    assert (monotonic(), wall_clock()) == (7.0, 8.0)


def test_draws_neither_follow_nor_disturb_the_random_module() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    first = [draw() for _ in range(20)]
    assert random.random() == expected
    random.seed(5)
    second = [draw() for _ in range(20)]
    assert len({*first, *second}) == 40
    assert all(0 <= each < 1 for each in first)
