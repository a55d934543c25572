"""Files that are replaced as a whole: drafts that are overtaken, and disks that accept a part."""

from pathlib import Path

import pytest

from gnsq_like.server.storage.atomic_file import AtomicFile
from tests.support.files import files_no_larger_than


def test_the_newest_draft_wins_whichever_is_stored_last(tmp_path: Path) -> None:
    file = AtomicFile(str(tmp_path / "file"))
    old, new = file.draft(b"old"), file.draft(b"new")
    for draft in (new, old):
        draft.store()
    for draft in (new, old):
        file.publish(draft)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_removed_file_does_not_come_back_by_a_draft(tmp_path: Path) -> None:
    file = AtomicFile(str(tmp_path / "file"))
    file.replace(b"there", sync=False)
    draft = file.draft(b"late")
    draft.store()
    file.remove()
    file.remove()
    file.publish(draft)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_a_part_only_leaves_the_old_content(tmp_path: Path) -> None:
    """The first write to an almost full disk is short, not an error."""
    file = AtomicFile(str(tmp_path / "file"))
    file.replace(b"old", sync=True)
    with files_no_larger_than(1000), pytest.raises(OSError, match="File too large"):
        file.replace(bytes(1001), sync=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
