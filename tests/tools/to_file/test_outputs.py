"""Where closed files go: other directories and stores."""

import os
from pathlib import Path

import pytest

from gnsq_like.tools.to_file.members import MissingPackage
from gnsq_like.tools.to_file.outputs import MovedTo, UploadedTo
from tests.support.tools import files_below


def closed(directory: Path, name: str, data: bytes) -> str:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name


def test_a_file_moves_to_another_file_system(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    path = shm / f"gnsq-like-test-{os.getpid()}"
    path.write_bytes(b"x")
    closed(tmp_path, "a-000000", b"theirs")
    MovedTo(str(shm), str(tmp_path)).take(path.name, "a<REV>", 0)
    assert not path.exists()
    assert files_below(tmp_path) == {"a-000000": b"theirs", "a-000001": b"x"}


@pytest.mark.parametrize("spelled", ["relative", "linked"])
def test_the_same_directory_by_another_path_keeps_the_file(
    spelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    closed(tmp_path / "w", "a-000000", b"x")
    (tmp_path / "linked").symlink_to("w")
    MovedTo(str(tmp_path / "w"), "w" if spelled == "relative" else "linked").take("a-000000", "a<REV>", 0)
    assert files_below(tmp_path / "w") == {"a-000000": b"x"}


def test_a_name_without_number_that_is_taken_is_an_error(tmp_path: Path) -> None:
    name = closed(tmp_path / "w", "a", b"x")
    closed(tmp_path / "o", "a", b"theirs")
    with pytest.raises(FileExistsError):
        MovedTo(str(tmp_path / "w"), str(tmp_path / "o")).take(name, "a", 0)
    assert files_below(tmp_path) == {"w/a": b"x", "o/a": b"theirs"}


def test_a_move_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    name = closed(tmp_path / "w", "a", b"x")
    (tmp_path / "o").mkdir()
    os.link(tmp_path / "w" / name, tmp_path / "o" / "a-000000")
    MovedTo(str(tmp_path / "w"), str(tmp_path / "o")).take(name, "a<REV>", 0)
    assert files_below(tmp_path) == {"o/a-000000": b"x"}


def uploading(directory: Path) -> UploadedTo:
    return UploadedTo(f"file://{directory}/store", str(directory / "work"))


def test_files_are_uploaded_in_order_and_removed(tmp_path: Path) -> None:
    output = uploading(tmp_path)
    for number, name in enumerate(("b/x", "a")):
        output.take(closed(tmp_path / "work", name, name.encode()), name, 0)
        os.utime(tmp_path / "work" / ".upload" / name, (number, number))
    assert output.exists("a")
    waiting = list(output.waiting())
    assert waiting == [".upload/b/x", ".upload/a"]
    for name in waiting:
        output.upload(name)
    assert files_below(tmp_path) == {"store/b/x": b"b/x", "store/a": b"a"}
    assert list(output.waiting()) == []


def test_a_topic_that_begins_with_a_dot_is_uploaded(tmp_path: Path) -> None:
    output = uploading(tmp_path)
    output.take(closed(tmp_path / "work", ".topic.log", b"x"), ".topic.log", 0)
    output.upload(*output.waiting())
    assert files_below(tmp_path) == {"store/.topic.log": b"x"}


def test_an_object_of_that_name_is_not_overwritten(tmp_path: Path) -> None:
    output = uploading(tmp_path)
    closed(tmp_path / "store", "a.log", b"same")
    output.take(closed(tmp_path / "work", "a.log", b"size"), "a.log", 0)
    output.upload(*output.waiting())
    assert files_below(tmp_path) == {"store/a.log": b"same", "store/a-1.log": b"size"}


def test_an_upload_that_was_interrupted_is_repeated_under_its_name(tmp_path: Path) -> None:
    """Killed after the object was there, and before the file was removed."""
    output = uploading(tmp_path)
    closed(tmp_path / "store", "a.log", b"theirs")
    output.take(closed(tmp_path / "work", "a.log", b"ours"), "a.log", 0)
    (name,) = output.waiting()
    output.upload(name)
    # What a kill leaves behind: the file, and the note of its name in the store.
    closed(tmp_path / "work", name, b"ours")
    (tmp_path / "work" / ".upload" / ".a.log.target").write_text(f"{tmp_path}/store/a-1.log")
    uploading(tmp_path).upload(name)
    assert files_below(tmp_path / "store") == {"a.log": b"theirs", "a-1.log": b"ours"}
    assert list(output.waiting()) == []


def test_a_store_without_its_package() -> None:
    with pytest.raises(MissingPackage, match="gcsfs is not installed: pip install gcsfs"):
        UploadedTo("gs://bucket/x", "/tmp")
