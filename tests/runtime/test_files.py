"""Files: one winner for a new name, never a part, whatever fails; and what others may have put there is refused."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.runtime.files import (
    TEMPORARY_PREFIX,
    NotOurs,
    create_file,
    directory_below,
    open_own,
    others_may_write,
    private_directory,
    remove_file,
    replace_file,
    sync_directory,
    temporary_beside,
    trust,
    write_file,
)
from tests.support.files import files_no_larger_than


def test_a_new_file_has_its_content_and_nothing_is_beside_it(tmp_path: Path) -> None:
    assert create_file(tmp_path / "file", b"content")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"content"}


def test_creating_leaves_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("nowhere")
    assert not create_file(tmp_path / "file", b"other")
    assert not create_file(tmp_path / "link", b"other")
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_of_many_that_create_one_succeeds(tmp_path: Path) -> None:
    contents = [b"%d" % number * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda content: create_file(tmp_path / "file", content), contents))
    assert results.count(True) == 1
    assert (tmp_path / "file").read_bytes() == contents[results.index(True)]
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("sync", [False, True])
def test_replacing_gives_the_new_content_with_its_mode(tmp_path: Path, sync: bool) -> None:
    path = str(tmp_path / "file")
    for content in (b"old", b"new"):
        replace_file(path, memoryview(content), mode=0o600, sync=sync)
        assert (tmp_path / "file").read_bytes() == content
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_replacing_a_link_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "file").symlink_to("target")
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_bytes() == b"mine"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_disk_that_accepts_a_part_leaves_the_old_content(tmp_path: Path) -> None:
    """The first write to an almost full disk is short, not an error."""
    replace_file(tmp_path / "file", b"old")
    with pytest.raises(OSError, match="File too large"), files_no_larger_than(1000):
        replace_file(tmp_path / "file", bytes(1001))
    with pytest.raises(OSError, match="File too large"), files_no_larger_than(1000):
        create_file(tmp_path / "other", bytes(1001))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_what_cannot_get_its_name_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "directory", b"content")
    assert os.listdir(tmp_path) == ["directory"]
    with pytest.raises(FileNotFoundError):
        create_file(tmp_path / "missing" / "file", b"content")
    with pytest.raises(NotADirectoryError):
        sync_directory(__file__)


def test_a_file_is_written_only_where_there_is_none(tmp_path: Path) -> None:
    write_file(tmp_path / "file", b"first")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            write_file(tmp_path / name, b"second")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert not (tmp_path / "target").exists()


def test_the_current_directory_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_file("file", b"content")
    replace_file("file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@given(st.from_regex(r"[^/\0]{1,40}", fullmatch=True).filter(lambda name: name not in (".", "..")))
def test_temporary_names_are_hidden_different_and_in_the_same_directory(name: str) -> None:
    names = {temporary_beside(f"/directory/{name}") for _ in range(3)}
    assert len(names) == 3
    assert {os.path.dirname(each) for each in names} == {"/directory"}
    assert all(os.path.basename(each).startswith(f"{TEMPORARY_PREFIX}{name}.") for each in names)


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with files_no_larger_than(10), pytest.raises(OSError, match=str(path)) as raised:
        write_file(path, b"x" * 100)
    assert raised.value.filename == str(path)
    with files_no_larger_than(10), pytest.raises(OSError, match=r"\.kept\."):
        replace_file(path, b"x" * 100)
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_begin_in_an_open_directory(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    descriptor = os.open(tmp_path / "first", os.O_RDONLY)
    try:
        (tmp_path / "first").rename(tmp_path / "renamed")
        for content in (b"old", b"new"):
            replace_file("file", content, directory=descriptor)
        assert {path.name: path.read_bytes() for path in (tmp_path / "renamed").iterdir()} == {"file": b"new"}
        remove_file("file", directory=descriptor)
        assert list((tmp_path / "renamed").iterdir()) == []
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("mode", "owner", "may"),
    [
        (0o755, os.geteuid(), False),
        (0o755, 0, False),
        (0o775, os.geteuid(), True),
        (0o1777, 0, True),
        (0o700, os.geteuid() + 1, True),
    ],
)
def test_who_may_write(mode: int, owner: int, may: bool) -> None:
    assert others_may_write(os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))) is may


def test_the_directory_that_was_chosen_may_be_a_link_and_nothing_below_it(tmp_path: Path) -> None:
    (tmp_path / "real" / "a").mkdir(parents=True)
    (tmp_path / "chosen").symlink_to("real")
    (tmp_path / "real" / "link").symlink_to("a")
    (tmp_path / "real" / "file").touch()
    with directory_below(str(tmp_path / "chosen"), "a/b") as descriptor:
        assert os.path.samestat(os.fstat(descriptor), (tmp_path / "real" / "a" / "b").stat())
    for name in ("link", "link/b", "file", "..", "a/..", "a/../link"):
        with pytest.raises(NotOurs), directory_below(str(tmp_path / "chosen"), name):
            pass
    assert not (tmp_path / "real" / "a" / "b" / "b").exists()


def test_directories_are_made_only_if_wanted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, directory_below(str(tmp_path), "a/b", make=False):
        pass
    assert caught.value.filename == str(tmp_path / "a")
    with directory_below(str(tmp_path / "x" / "y"), "a/b"):
        assert (tmp_path / "x" / "y" / "a" / "b").is_dir()


def test_a_private_directory_is_trusted_only_when_it_has_been_cleared(tmp_path: Path) -> None:
    def is_wide() -> bool:
        with private_directory(str(tmp_path), "d") as (_, found):
            return found

    assert not is_wide()
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    (tmp_path / "d").chmod(0o755)
    assert not is_wide()
    (tmp_path / "d").chmod(0o720)
    assert is_wide()
    assert is_wide()
    with private_directory(str(tmp_path), "d") as (descriptor, _):
        trust(descriptor)
    assert not is_wide()


@pytest.mark.parametrize("is_shared", [False, True])
def test_links_and_pipes_are_refused_where_others_may_write(is_shared: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    os.link(tmp_path / "file", tmp_path / "hard")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "own").touch()
    tmp_path.chmod(0o777 if is_shared else 0o755)
    for name in ("link", "hard"):
        if is_shared:
            with pytest.raises(NotOurs) as caught:
                open_own(str(tmp_path / name), os.O_WRONLY)
            assert caught.value.filename == str(tmp_path / name)
        else:
            os.close(open_own(str(tmp_path / name), os.O_WRONLY))
    for name in ("pipe", "directory"):
        with pytest.raises(NotOurs if is_shared else OSError):
            open_own(str(tmp_path / name), os.O_WRONLY | os.O_NONBLOCK)
    os.close(open_own(str(tmp_path / "own"), os.O_WRONLY))
    os.close(open_own(str(tmp_path / "new"), os.O_WRONLY | os.O_CREAT, 0o600))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
