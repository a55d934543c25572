"""Which files a disk queue has: numbers, names, and those that cannot be removed."""

from pathlib import Path

import pytest

from gnsq_like.server.storage.queue_files import QueueFiles


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def noted(directory: Path, name: str = "t") -> QueueFiles:
    files = QueueFiles(str(directory), name)
    files.note(files_in(directory))
    return files


def test_numbers_are_read_from_names(tmp_path: Path) -> None:
    for name in ("000003.dat", "1234567.dat", "000004.dat.bad", "12.dat", "meta.dat", "000005.dat.tmp"):
        (tmp_path / f"t.diskqueue.{name}").touch()
    assert noted(tmp_path).numbers == {3, 1234567}


def test_a_file_that_cannot_be_removed_is_still_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t.diskqueue.000000.dat").mkdir()
    (tmp_path / "t.diskqueue.000001.dat").touch()
    files = noted(tmp_path)
    files.remove(files.numbers)
    assert files.numbers == {0}
    assert "DISKQUEUE(t): failed to remove data file - " in caplog.text
    assert files.size(0) > 0
    assert files.size(1) == 0
