"""Files where other users may write: what they may have put there is refused."""

import os
import stat
from pathlib import Path

import pytest

from gnsq_like.own_files import NotOurs, directory_below, open_own, others_may_write, private_directory, trust


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
