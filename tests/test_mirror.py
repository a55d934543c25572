"""Each module of the client has a test file of its own, where one looks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: The client's rooms; what lies directly in gnsq_like/ belongs to it, too.
ROOMS = [
    *(".", "wire", "policy", "runtime", "options", "transport", "http"),
    *("connection", "discovery", "reader", "producer"),
]

#: What runs no code of its own but when it is imported, or is tested where it is used: see test_layering.
WITHOUT = {"__init__.py", "__main__.py", "_lazy.py", "_version.py"}


def modules(room: str) -> list[str]:
    return sorted(path.name for path in (ROOT / "gnsq_like" / room).glob("*.py") if path.name not in WITHOUT)


@pytest.mark.parametrize("room", ROOMS)
def test_each_module_has_its_test_file(room: str) -> None:
    missing = [name for name in modules(room) if not (ROOT / "tests" / room / f"test_{name}").is_file()]
    assert missing == []


def test_no_test_file_imports_another() -> None:
    """What several share lies in tests/support, and whoever changes a test changes no other."""
    importing = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text().splitlines()
        if line.startswith(("from tests.", "import tests.")) and ".test_" in line.split(" import ")[0]
    ]
    assert importing == []
