"""What type checkers see of packages whose names are loaded at first use."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from tests.support.scripts import run_beside

ROOT = Path(__file__).resolve().parent.parent


def test_type_checkers_know_every_public_name_and_no_other(tmp_path: Path) -> None:
    inits = [path for path in sorted((ROOT / "gnsq_like").rglob("__init__.py")) if "lazy_names(" in path.read_text()]
    lazy = [".".join(path.parent.relative_to(ROOT).parts) for path in inits]
    assert "gnsq_like.testing" in lazy
    lines = []
    for number, package in enumerate(lazy):
        names = [name for name in import_module(package).__all__ if name != "__version__"]
        lines += [f"from {package} import {', '.join(names)}", f"from {package} import Nonesuch as n{number}"]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines))
    # Not the modules that define the names: that would take a minute, and they are checked anyway.
    flags = ["--follow-imports=skip", "--no-error-summary"]
    done = run_beside([sys.executable, "-m", "mypy", *flags, *map(str, inits), str(program)], cwd=ROOT)
    found = re.findall(r'program\.py:(\d+): error: .* has no attribute "Nonesuch"', done.stdout)
    assert found == [str(number) for number, line in enumerate(lines, 1) if "Nonesuch" in line], done.stdout
    assert done.stdout.count("program.py") == len(lazy), done.stdout
