"""Changed code is noticed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gnsq_like.tools.supervisor.changed_files import ChangedFiles, files_of, loaded_files


def test_a_changed_file_is_found_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    for path in (one, two):
        path.write_text("")
    files = ChangedFiles()
    files.add([str(one), str(two)])
    assert files.look() is None
    os.utime(two, ns=(1, 1))
    files.add([str(two)])
    assert files.look() == str(two)
    assert files.look() is None


def test_a_file_that_is_replaced_has_changed_when_it_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("")
    files = ChangedFiles()
    files.add([str(path)])
    path.unlink()
    assert files.look() is None
    path.write_text("new")
    assert files.look() == str(path)


def test_loaded_files_are_those_that_change() -> None:
    found = loaded_files()
    assert os.path.abspath(__file__) in found
    assert os.path.abspath(pytest.__file__) not in found
    assert os.path.abspath(os.__file__) not in found


def test_the_files_of_an_error_are_those_it_came_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nsqouter.py").write_text("import nsqinner\n")
    (tmp_path / "nsqinner.py").write_text("def :\n")
    try:
        import nsqouter  # type: ignore[import-not-found]  # noqa: F401
    except SyntaxError as exc:
        try:
            raise RuntimeError from exc
        except RuntimeError as outer:
            found = files_of(outer)
    assert {str(tmp_path / "nsqouter.py"), str(tmp_path / "nsqinner.py")} <= found
    assert "nsqouter" not in sys.modules
