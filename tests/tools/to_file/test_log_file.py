"""One topic's files: opening, rotation, closing, as docs/internals 6.1 says."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.tools.to_file.leftovers import recover
from gnsq_like.tools.to_file.log_file import LogFile
from gnsq_like.tools.to_file.members import COMPRESSIONS, new_member
from gnsq_like.tools.to_file.outputs import make_output
from gnsq_like.tools.to_file.plan import FilePlan
from tests.support.tools import files_below


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def made(directory: Path, clock: Clock | None = None, **options: Any) -> tuple[LogFile, FilePlan]:
    options = {"output_dir": str(directory / "out"), "filename_format": "<TOPIC><REV>", **options}
    plan = FilePlan(**options)
    return LogFile(plan, "t", make_output(plan), clock or Clock()), plan


def plain(compression: str, data: bytes) -> bytes:
    """What a file says."""
    found = b""
    while compression and data:
        member = COMPRESSIONS[compression].new_decompressor()
        found += member.decompress(data)
        data = member.unused_data
    return found + data


def encoded(compression: str, data: bytes) -> bytes:
    """A file that says this."""
    if not compression:
        return data
    member = new_member(compression, 0)
    return member.compress(data) + member.flush()


def visible(directory: Path) -> dict[str, bytes]:
    """The files, without notes."""
    return {name: data for name, data in files_below(directory).items() if not name.startswith((".to-file", "."))}


def test_lines_are_appended_to_the_file_that_is_there(tmp_path: Path) -> None:
    for _ in range(2):
        log, _ = made(tmp_path)
        assert log.write([b"one", b"two"], sync=False) is True  # the first message of a new file is synced
        assert log.write([b"three"], sync=False) is False
        assert log.write([], sync=True) is True
        log.close()
    assert visible(tmp_path / "out") == {"t": b"one\ntwo\nthree\n" * 2}


def test_directories_are_made(tmp_path: Path) -> None:
    log, _ = made(tmp_path, filename_format="a/<TOPIC>/b<REV>")
    log.write([b"x"], sync=True)
    log.close()
    assert visible(tmp_path / "out") == {"a/t/b": b"x\n"}


def test_rotation_by_size_counts_uncompressed_bytes_and_closes_after_the_limit(tmp_path: Path) -> None:
    log, _ = made(tmp_path, rotate_size=5)
    log.write([b"123", b"45", b"6", b"7"], sync=True)
    log.close()
    assert visible(tmp_path / "out") == {"t-000000": b"123\n45\n", "t-000001": b"6\n7\n"}
    # Without an interval or compression, a file that has room is appended to.
    log, _ = made(tmp_path, rotate_size=5)
    log.write([b"89", b"0"], sync=True)
    log.close()
    assert visible(tmp_path / "out") == {"t-000000": b"123\n45\n", "t-000001": b"6\n7\n89\n", "t-000002": b"0\n"}


def test_rotation_by_interval_takes_new_names(tmp_path: Path) -> None:
    clock = Clock()
    log, _ = made(tmp_path, clock, rotate_interval=10.0)
    log.write([b"a"], sync=True)
    clock.now += 10
    log.write([b"b"], sync=True)
    clock.now += 1
    assert log.write([b"c"], sync=False) is True
    log.close()
    other, _ = made(tmp_path, clock, rotate_interval=10.0)
    other.write([b"d"], sync=True)
    other.close()
    assert visible(tmp_path / "out") == {"t-000000": b"a\nb\n", "t-000001": b"c\n", "t-000002": b"d\n"}


def test_a_new_date_starts_again_at_0(tmp_path: Path) -> None:
    clock = Clock()
    log, _ = made(tmp_path, clock, filename_format="<DATETIME><REV>", datetime_format="%S", rotate_size=1)
    log.write([b"aa", b"b"], sync=True)
    first = {name[:2] for name in visible(tmp_path / "out")}.pop()
    clock.now += 1
    log.tick()
    log.close()
    names = sorted(visible(tmp_path / "out"))
    assert names[:2] == [f"{first}-000000", f"{first}-000001"]
    assert names[2].endswith("-000000")
    assert len(names) == 3


@pytest.mark.parametrize("skip", [False, True])
def test_empty_files(tmp_path: Path, skip: bool) -> None:
    clock = Clock()
    log, _ = made(tmp_path, clock, compression="gzip", rotate_interval=10.0, skip_empty_files=skip)
    for _ in range(2):
        log.tick()
        clock.now += 11
    log.close()
    found = visible(tmp_path / "out")
    assert {name: gzip.decompress(data) for name, data in found.items()} == (
        {} if skip else {"t-000000.gz": b"", "t-000001.gz": b""}
    )


def test_each_sync_ends_a_member(tmp_path: Path) -> None:
    log, _ = made(tmp_path, compression="gzip")
    path = tmp_path / "out" / "t-000000.gz"
    written = b""
    for body in (b"one", b"two"):
        log.write([body], sync=True)
        written += body + b"\n"
        assert gzip.decompress(path.read_bytes()) == written
    size = path.stat().st_size
    log.close()
    assert path.stat().st_size == size


def test_a_work_dir_holds_files_in_progress_and_nothing_is_overwritten(tmp_path: Path) -> None:
    log, _ = made(tmp_path, work_dir=str(tmp_path / "work"))
    log.write([b"one"], sync=True)
    assert visible(tmp_path / "work") == {"t-000000": b"one\n"}
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "t-000000").write_bytes(b"theirs")
    (tmp_path / "out" / "t-000002").write_bytes(b"theirs")
    log.close()
    assert visible(tmp_path / "work") == {}
    assert visible(tmp_path / "out")["t-000001"] == b"one\n"
    # A name that is taken there is not begun.
    log.write([b"two"], sync=True)
    assert visible(tmp_path / "work") == {"t-000003": b"two\n"}
    log.close()
    assert len(visible(tmp_path / "out")) == 4


# -- what others do to the file meanwhile --------------------------------------------------------------


@pytest.mark.parametrize("compression", [*COMPRESSIONS, ""])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("removed", [False, True])
def test_a_file_that_was_renamed_or_removed_is_left_at_the_next_sync(
    removed: bool, replaced: bool, compression: str, tmp_path: Path
) -> None:
    log, plan = made(tmp_path, compression=compression, filename_format="<TOPIC><REV>.log")
    log.write([b"one"], sync=True)
    (name,) = visible(tmp_path / "out")
    path = tmp_path / "out" / name
    path.unlink() if removed else path.rename(tmp_path / "moved")
    if replaced:
        path.write_bytes(encoded(compression, b"theirs\n"))
    assert log.write([b"two"], sync=False) is False
    assert log.write([b"three"], sync=True) is True  # what is synced by now may be finished
    here = [line for data in visible(tmp_path / "out").values() for line in plain(compression, data).splitlines()]
    there = [] if removed else plain(compression, (tmp_path / "moved").read_bytes()).splitlines()
    assert [each for each in there + here if each != b"theirs"] == [b"one"] * (not removed) + [b"two", b"three"]
    log.write([b"four"], sync=True)
    log.close()
    found = [plain(compression, data).splitlines() for data in visible(tmp_path / "out").values()]
    assert b"four" in [line for lines in found for line in lines]
    assert recover(plan, make_output(plan)) == []


def test_a_file_that_was_removed_is_noticed_when_it_is_rotated(tmp_path: Path) -> None:
    log, _ = made(tmp_path, rotate_size=5, work_dir=str(tmp_path / "work"))
    log.write([b"a"], sync=True)
    log.write([b"b"], sync=False)
    (tmp_path / "work" / "t-000000").unlink()
    log.write([b"123456", b"c"], sync=True)
    log.close()
    lines = [line for data in visible(tmp_path / "out").values() for line in data.splitlines()]
    assert sorted(lines) == [b"123456", b"b", b"c"]


# -- what an earlier run left behind ----------------------------------------------------------------


def _begun(compression: str) -> bytes:
    """The beginning of a line, or of a member."""
    if not compression:
        return b"thr"
    member = new_member(compression, 0)
    return (member.compress(b"three") + member.flush())[:2]


@pytest.mark.parametrize("compression", [*COMPRESSIONS, ""])
@pytest.mark.parametrize("moves", [False, True])
def test_a_file_that_was_not_closed_is_cut_back(tmp_path: Path, compression: str, moves: bool) -> None:
    more: dict[str, Any] = {"work_dir": str(tmp_path / "work")} if moves else {}
    log, plan = made(tmp_path, compression=compression, filename_format="<TOPIC><REV>.log", **more)
    log.write([b"one", b"two"], sync=True)
    (name,) = visible(Path(plan.directory))
    whole = (Path(plan.directory) / name).read_bytes()
    log.abandon()
    with (Path(plan.directory) / name).open("ab") as file:
        file.write(_begun(compression))
    assert recover(plan, make_output(plan)) == [name]
    assert visible(tmp_path / "out") == {name: whole}
    assert recover(plan, make_output(plan)) == []


def test_a_file_without_a_whole_member_is_removed(tmp_path: Path) -> None:
    log, plan = made(tmp_path, compression="gzip")
    log.write([], sync=False)
    log.tick()
    log.abandon()
    assert recover(plan, make_output(plan)) == ["t-000000.gz"]
    assert visible(tmp_path / "out") == {}


def test_a_file_that_another_process_has_open_is_left_alone(tmp_path: Path) -> None:
    log, plan = made(tmp_path, compression="gzip")
    log.write([b"one"], sync=True)
    with (tmp_path / "out" / "t-000000.gz").open("ab") as file:
        file.write(b"half a member")
    assert recover(plan, make_output(plan)) == []
    assert (tmp_path / "out" / "t-000000.gz").read_bytes().endswith(b"half a member")
    other, _ = made(tmp_path, compression="gzip")
    other.write([b"two"], sync=True)
    other.close()
    assert set(visible(tmp_path / "out")) == {"t-000000.gz", "t-000001.gz"}
    log.abandon()
    assert recover(plan, make_output(plan)) == ["t-000000.gz"]
