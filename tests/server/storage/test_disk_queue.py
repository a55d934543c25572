"""The disk queue: against a deque, through restarts and crashes, on damaged files, on disks that fail."""

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gnsq_like.server.storage.disk_queue import DiskError, DiskQueue
from gnsq_like.server.storage.records import HEADER, HEADER_BYTES, SIZE_BYTES, Record
from tests.support.files import files_no_larger_than, memory_directory
from tests.support.processes import no_descriptors
from tests.support.scale import share_of

#: More than anything here has.
ALL = 1 << 30


def numbers_in(directory: Path, name: str = "t") -> list[int]:
    return [int(path.name.split(".")[-2]) for path in directory.glob(f"{name}.diskqueue.[0-9]*.dat")]


def opened(directory: Path, name: str = "t", max_bytes_per_file: int = 300, is_known: bool = True) -> DiskQueue:
    queue = DiskQueue(str(directory), name, max_bytes_per_file)
    queue.open([path.name for path in directory.glob(f"{name}.diskqueue.*")], is_known)
    return queue


def records(count: int, first: int = 0, size: int = 20) -> list[Record]:
    return [(1000 + n, n % 65536, b"%016x" % n, (b"%d." % n) * size) for n in range(first, first + count)]


def drained(queue: DiskQueue) -> list[Record]:
    taken = queue.take(ALL, ALL)
    assert queue.depth == 0
    assert queue.take(ALL, ALL) == []
    return taken


def meta(directory: Path) -> str:
    return (directory / "t.diskqueue.meta.dat").read_text()


def leave_read_files(directory: Path) -> None:
    """The state after a kill between two steps: files that were read to their ends have not been removed."""
    record = HEADER.pack(HEADER_BYTES - SIZE_BYTES + 8, 1, 1, b"f" * 16) + b"finished"
    first_unread = int(meta(directory).split("\n")[1].split(",")[0])
    for number in range(max(0, first_unread - 3), first_unread):
        (directory / f"t.diskqueue.{number:06d}.dat").write_bytes(record * 3)


# -- the format ----------------------------------------------------------------------------------------


def test_files_are_as_go_diskqueue_writes_them(tmp_path: Path) -> None:
    queue = opened(tmp_path, max_bytes_per_file=100)
    queue.put([(0x0102030405060708, 0x0A0B, b"0123456789abcdef", b"body"), (1, 2, b"f" * 16, b"x" * 40)])
    queue.put([(3, 4, b"e" * 16, b"")])
    queue.close()
    files = {path.name: path for path in tmp_path.iterdir()}
    assert sorted(files) == ["t.diskqueue.000000.dat", "t.diskqueue.000001.dat", "t.diskqueue.meta.dat"]
    first = b"\0\0\0\x1e\1\2\3\4\5\6\7\x08\x0a\x0b0123456789abcdefbody"
    assert files["t.diskqueue.000000.dat"].read_bytes() == first
    second = b"\0\0\0\x42" + b"\0" * 7 + b"\1\0\2" + b"f" * 16 + b"x" * 40
    third = b"\0\0\0\x1a" + b"\0" * 7 + b"\3\0\4" + b"e" * 16
    assert files["t.diskqueue.000001.dat"].read_bytes() == second + third
    assert files["t.diskqueue.meta.dat"].read_text() == "3\n0,0\n1,100\n"
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}


def test_a_message_larger_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    queue = opened(tmp_path, max_bytes_per_file=50)
    written = records(3)
    queue.put(written)
    assert len(numbers_in(tmp_path)) == 3
    assert drained(queue) == written


def test_files_that_were_read_are_removed_and_a_queue_never_used_has_none(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.close()
    assert list(tmp_path.iterdir()) == []
    queue = opened(tmp_path)
    queue.put(records(50))
    assert len(numbers_in(tmp_path)) > 5
    assert len(drained(queue)) == 50
    assert len(numbers_in(tmp_path)) == 1
    queue.clear()
    assert list(tmp_path.iterdir()) == []
    queue.put(records(1))
    assert numbers_in(tmp_path) == [int(meta(tmp_path).split(",")[0].split("\n")[1])]
    queue.close()


def test_what_is_taken_is_bounded_by_count_and_bytes(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    written = [(1, 1, b"%016x" % n, b"x" * 100) for n in range(20)]
    queue.put(written)
    assert queue.take(3, ALL) == written[:3]
    assert queue.take(ALL, 250) == written[3:6]
    assert queue.take(0, ALL) == queue.take(ALL, 0) == []
    assert queue.depth == 14
    assert drained(queue) == written[6:]
    queue.close()


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc")
@pytest.mark.parametrize("end", [DiskQueue.clear, DiskQueue.close])
def test_no_file_stays_open(tmp_path: Path, end: Callable[[DiskQueue], None]) -> None:
    queue = opened(tmp_path)
    queue.put(records(20))
    queue.take(1, ALL)
    assert len(open_files_below(tmp_path)) >= 2
    end(queue)
    assert open_files_below(tmp_path) == []


def open_files_below(directory: Path) -> list[str]:
    """Those of this process; other threads may open and close theirs at any time."""
    found: list[str] = []
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return [each for each in found if each.startswith(str(directory))]


# -- files that a kill leaves --------------------------------------------------------------------------


def put_and_half_read(directory: Path) -> None:
    """Leave a queue whose first files have been read, with metadata."""
    queue = opened(directory)
    queue.put(records(50))
    assert len(queue.take(25, ALL)) == 25
    queue.close()
    assert min(numbers_in(directory)) > 3


def test_files_below_the_read_position_are_removed_when_the_queue_is_opened(tmp_path: Path) -> None:
    put_and_half_read(tmp_path)
    before = numbers_in(tmp_path)
    leave_read_files(tmp_path)
    queue = opened(tmp_path)
    assert numbers_in(tmp_path) == before
    assert drained(queue) == records(25, first=25)
    queue.close()


@pytest.mark.parametrize("end", [DiskQueue.clear, DiskQueue.discard])
def test_clearing_removes_files_outside_the_range_too(tmp_path: Path, end: Callable[[DiskQueue], None]) -> None:
    put_and_half_read(tmp_path)
    queue = opened(tmp_path)
    numbers = numbers_in(tmp_path)
    # Directories cannot be unlinked, as files of a file system that fails.
    for number in (0, max(numbers) + 7):
        (tmp_path / f"t.diskqueue.{number:06d}.dat").mkdir()
    queue._files.note(path.name for path in tmp_path.iterdir())
    end(queue)
    assert numbers_in(tmp_path) == [0, max(numbers) + 7]
    queue.close()
    queue = opened(tmp_path)
    assert queue.depth == 0
    queue.put(records(3))
    assert drained(queue) == records(3)
    for number in (0, max(numbers) + 7):
        (tmp_path / f"t.diskqueue.{number:06d}.dat").rmdir()
    end(queue)
    assert list(tmp_path.iterdir()) == []


def test_a_new_queue_takes_no_files_that_no_metadata_names(tmp_path: Path) -> None:
    put_and_half_read(tmp_path)
    (tmp_path / "t.diskqueue.meta.dat").unlink()
    queue = opened(tmp_path, is_known=False)
    assert (queue.depth, numbers_in(tmp_path)) == (0, [])
    queue.put(records(3))
    queue.close()
    queue = opened(tmp_path, is_known=False)  # its metadata names them
    assert drained(queue) == records(3)
    queue.close()


def test_damaged_files_go_with_the_queue_but_not_with_its_messages(tmp_path: Path) -> None:
    bad = tmp_path / "t.diskqueue.000003.dat.bad"
    bad.touch()
    queue = opened(tmp_path)
    queue.clear()
    assert bad.exists()
    queue.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_record_torn_by_a_kill_brings_back_nothing_that_was_read(tmp_path: Path) -> None:
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    queue.put(records(20))
    queue.take(20, ALL)
    queue.close()
    with (tmp_path / "t.diskqueue.000000.dat").open("ab") as file:
        file.write(HEADER.pack(1000, 1, 1, b"f" * 16))
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    assert queue.take(ALL, ALL) == []
    queue.put(records(3))
    assert drained(queue) == records(3)
    queue.close()


def test_a_file_removed_before_a_kill_is_not_counted(tmp_path: Path) -> None:
    put_and_half_read(tmp_path)
    first = min(numbers_in(tmp_path))
    (tmp_path / f"t.diskqueue.{first:06d}.dat").unlink()
    queue = opened(tmp_path)
    depth = queue.depth
    assert len(drained(queue)) == depth > 10
    queue.close()


# -- syncing -------------------------------------------------------------------------------------------


def test_a_sync_that_fails_while_files_fill_closes_none_of_them_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second close would be of whatever has the number by then: another file, or a client."""
    queue = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _fails)
        with pytest.raises(DiskError, match="input/output error"):
            queue.put(records(100, size=200))
    queue.put(records(3))  # in a file with a number that was closed
    sync = queue.begin_sync()
    assert sync is not None
    sync.run()
    queue.end_sync(sync)
    queue.put(records(3, first=3))
    assert drained(queue) == records(6)


def test_files_that_could_not_be_synced_are_synced_by_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened(tmp_path, max_bytes_per_file=500)
    queue.put(records(10, size=200))
    open_before: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _fails)
        for _ in range(3):
            sync = queue.begin_sync()
            assert sync is not None
            with pytest.raises(OSError, match=r"diskqueue\.\d+\.dat"):
                sync.run()
            queue.end_sync(sync)
            open_before.append(len(os.listdir("/dev/fd")))
    assert len(set(open_before)) == 1
    synced: list[int] = []
    # The operating system's call: nothing else shows which files were synced.
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    sync = queue.begin_sync()
    assert sync is not None
    sync.run()
    queue.end_sync(sync)
    files = [path.stat().st_ino for path in tmp_path.glob("*.diskqueue.0*.dat")]
    assert len(files) > 3
    assert set(files) <= set(synced)
    assert drained(queue) == records(10, size=200)


def _fails(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_when_a_sync_is_due(tmp_path: Path) -> None:
    notes: list[bool] = []
    queue = DiskQueue(str(tmp_path), "t", sync_every=10, on_unsynced=lambda _, now: notes.append(now))
    queue.open()
    queue.put(records(4))
    queue.take(5, ALL)
    queue.put(records(2))
    assert notes == [False, False, True]
    queue.close()


def test_a_sync_writes_the_meta_of_its_beginning_unless_it_is_overtaken(tmp_path: Path) -> None:
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    queue.put(records(4))
    sync = queue.begin_sync()
    assert sync is not None
    queue.put(records(4))
    sync.run()
    queue.end_sync(sync)
    assert meta(tmp_path).startswith("4\n0,0\n0,")
    assert queue.begin_sync() is not None
    assert queue.begin_sync() is None
    queue.put(records(1))
    sync = queue.begin_sync()
    assert sync is not None
    queue.clear()
    sync.run()
    queue.end_sync(sync)
    assert list(tmp_path.iterdir()) == []


# -- against a deque -----------------------------------------------------------------------------------

batches = st.lists(st.binary(max_size=120), min_size=1, max_size=12)


class AgainstADeque(RuleBasedStateMachine):
    """In any sequence of calls, the queue equals the deque; after a crash, the last reads may come again."""

    def __init__(self) -> None:
        super().__init__()
        self._made = memory_directory()
        self.directory = Path(self._made.name)
        self.queue = opened(self.directory)
        self.model: deque[Record] = deque()
        #: What was taken since the queue was emptied, in order.
        self.taken: list[Record] = []
        self.written = 0

    def teardown(self) -> None:
        assert drained(self.queue) == list(self.model)
        self.queue.close()
        self._made.cleanup()

    @rule(bodies=batches)
    def put(self, bodies: list[bytes]) -> None:
        added = [(n * 3, n % 7, b"%016x" % n, body) for n, body in enumerate(bodies, self.written)]
        self.written += len(added)
        self.queue.put(added)
        self.model.extend(added)

    @rule(count=st.integers(0, 15), max_bytes=st.sampled_from([1, 50, 500, ALL]))
    def take(self, count: int, max_bytes: int) -> None:
        taken = self.queue.take(count, max_bytes)
        assert taken == [self.model.popleft() for _ in taken]
        enough = len(taken) == count or sum(len(record[3]) for record in taken) >= max_bytes
        assert enough or not self.model
        self.taken += taken

    @rule()
    def sync(self) -> None:
        sync = self.queue.begin_sync()
        if sync is not None:
            sync.run()
            self.queue.end_sync(sync)

    @rule()
    def restart(self) -> None:
        self.queue.close()
        self.queue = opened(self.directory)

    @rule(without_meta=st.booleans(), left_over=st.booleans())
    def crash(self, without_meta: bool, left_over: bool) -> None:
        self.queue._close_reader()
        self.queue._writer.close()
        if without_meta:
            (self.directory / "t.diskqueue.meta.dat").unlink(missing_ok=True)
        elif left_over and (self.directory / "t.diskqueue.meta.dat").exists():
            leave_read_files(self.directory)
        self.queue = opened(self.directory)
        again = self.queue.depth - len(self.model)
        assert 0 <= again <= len(self.taken)
        if again:
            self.model.extendleft(reversed(self.taken[-again:]))
            del self.taken[-again:]

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.model.clear()
        self.taken.clear()
        assert list(self.directory.iterdir()) == []

    @invariant()
    def depths_agree(self) -> None:
        assert self.queue.depth == len(self.model)

    @invariant()
    def no_file_grows_beyond_the_limit(self) -> None:
        for path in self.directory.glob("*.[0-9]*.dat"):
            assert path.stat().st_size <= 300


TestAgainstADeque = AgainstADeque.TestCase
TestAgainstADeque.settings = settings(max_examples=share_of(150), stateful_step_count=40, deadline=None)


# -- damaged files -------------------------------------------------------------------------------------


def damaged(data: bytes, how: str, where: float) -> bytes | None:
    """The state of a file; None if it is gone."""
    at = int(where * len(data))
    if how == "removed":
        return None
    if how == "cut":
        return data[:at]
    if how == "longer":
        return data + b"\xff" * (at + 1)
    if how == "zeroed":
        return data[:at] + bytes(len(data) - at)
    return data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]


def places_of(written: Sequence[Record]) -> list[tuple[int, int]]:
    """File number and position of each record."""
    places = []
    number = position = 0
    for record in written:
        length = 30 + len(record[3])
        if position and position + length > 300:
            number, position = number + 1, 0
        places.append((number, position))
        position += length
    return places


@settings(max_examples=share_of(200))
@given(
    bodies=st.lists(st.integers(0, 90).map(lambda n: b"~" * n), min_size=12, max_size=30),
    read=st.integers(0, 5),
    number=st.integers(0, 2),
    how=st.sampled_from(["removed", "cut", "longer", "zeroed", "flipped"]),
    where=st.floats(0, 0.999),
)
def test_of_a_damaged_file_only_what_comes_after_the_damage_is_lost(
    bodies: list[bytes], read: int, number: int, how: str, where: float
) -> None:
    written = [(n, n, b"%016x" % n, body) for n, body in enumerate(bodies)]
    places = places_of(written)
    with memory_directory() as name:
        directory = Path(name)
        queue = opened(directory)
        queue.put(written)
        queue.take(read, ALL)
        queue.close()
        path = directory / f"t.diskqueue.{number:06d}.dat"
        if not path.exists():
            return
        data = path.read_bytes()
        after = damaged(data, how, where)
        path.unlink() if after is None else path.write_bytes(after)

        queue = opened(directory)
        found = drained(queue)
        queue.put(records(3, first=1000))
        assert drained(queue) == records(3, first=1000)
        queue.close()

    start = {"removed": 0, "longer": len(data)}.get(how, int(where * len(data)))
    for record, (in_file, position) in list(zip(written, places, strict=True))[read:]:
        # A record is returned only if another record begins after it.
        next_header_ends = position + 30 + len(record[3]) + 30
        assert record in found or (in_file == number and next_header_ends > start)
    strange = [record for record in found if record not in written]
    # There is no checksum: a change within one message cannot be detected.
    assert len(strange) <= (how in ("flipped", "zeroed"))
    assert len(found) <= len(written)


@settings(max_examples=share_of(150))
@given(
    read=st.integers(0, 20),
    how=st.sampled_from(["removed", "cut", "longer", "zeroed", "flipped"]),
    where=st.floats(0, 0.999),
)
def test_damaged_metadata_costs_no_wrong_message(read: int, how: str, where: float) -> None:
    written = records(30)
    with memory_directory() as name:
        directory = Path(name)
        queue = opened(directory)
        queue.put(written)
        queue.take(read, ALL)
        queue.close()
        path = directory / "t.diskqueue.meta.dat"
        after = damaged(path.read_bytes(), how, where)
        path.unlink() if after is None else path.write_bytes(after)
        queue = opened(directory)
        found = drained(queue)
        queue.put(records(3, first=1000))
        assert drained(queue) == records(3, first=1000)
        queue.close()
    assert set(found) <= set(written)
    if how in ("removed", "longer"):
        assert found[-(30 - read) :] == written[read:]


@pytest.mark.parametrize(
    "text",
    [
        "0\n0,0\n999999999999,0\n",
        "5\n0,0\n999999999999,7\n",
        "5\n0,1\n999999999999,0\n",
        f"5\n0,0\n{'9' * 220},0\n",
        f"5\n0,0\n{'9' * 5000},0\n",
    ],
    ids=["far", "far and written", "far and between records", "no file's name", "no number"],
)
def test_metadata_that_names_files_far_away_costs_no_message_and_no_time(tmp_path: Path, text: str) -> None:
    queue = opened(tmp_path)
    queue.put(records(30))
    queue.close()
    assert len(numbers_in(tmp_path)) > 5
    (tmp_path / "t.diskqueue.meta.dat").write_text(text)
    queue = opened(tmp_path)
    assert drained(queue) == records(30)
    queue.put(records(3, first=100))
    assert drained(queue) == records(3, first=100)
    queue.close()


def test_a_bad_file_is_kept_beside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = opened(tmp_path)
    queue.put(records(20))
    queue.close()
    path = tmp_path / "t.diskqueue.000001.dat"
    data = path.read_bytes()
    path.write_bytes(b"\xff" * len(data))
    queue = opened(tmp_path)
    found = drained(queue)
    assert 10 < len(found) < 20
    assert (tmp_path / "t.diskqueue.000001.dat.bad").read_bytes() == b"\xff" * len(data)
    assert f"reading at 0 of {path} - invalid record of size -1" in caplog.text
    assert f"skipped {len(data)} bytes" in caplog.text
    assert f"{20 - len(found)} messages are missing" in caplog.text
    queue.close()


def test_a_body_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    inner = b"\0\0\0\x1c" + b"\0" * 10 + b"a" * 16 + b"no"
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    queue.put([(1, 1, b"1" * 16, inner * 3), (2, 2, b"2" * 16, b"second")])
    queue.close()
    path = tmp_path / "t.diskqueue.000000.dat"
    data = bytearray(path.read_bytes())
    data[3] -= 1  # the first size: the next record would begin one byte early
    path.write_bytes(data)
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    assert drained(queue) == []
    queue.close()


# -- disks that fail -----------------------------------------------------------------------------------


def test_a_write_that_fails_half_way_adds_nothing_and_harms_nothing(tmp_path: Path) -> None:
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    queue.put(records(10))
    size = (tmp_path / "t.diskqueue.000000.dat").stat().st_size
    with files_no_larger_than(size + 100), pytest.raises(DiskError, match=r"^write /.*000000\.dat: file too large$"):
        queue.put(records(10, first=10))
    assert queue.depth == 10
    assert (tmp_path / "t.diskqueue.000000.dat").stat().st_size == size
    queue.put(records(5, first=10))
    queue.close()
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    assert drained(queue) == records(15)
    queue.close()


def test_a_sync_that_failed_is_made_good_for_by_the_next(tmp_path: Path) -> None:
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    queue.put(records(3))
    queue.take(1, ALL)
    sync = queue.begin_sync()
    assert sync is not None
    with files_no_larger_than(2), pytest.raises(OSError, match="File too large"):
        sync.run()  # the data is written, the metadata does not fit
    queue.end_sync(sync)
    queue.close()
    queue = opened(tmp_path, max_bytes_per_file=ALL)
    assert drained(queue) == records(2, first=1)
    queue.close()


def test_a_sync_that_failed_leaves_nothing_of_a_queue_dropped_meanwhile(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.put(records(3))
    sync = queue.begin_sync()
    assert sync is not None
    queue.clear()
    with files_no_larger_than(2), pytest.raises(OSError, match="File too large"):
        sync.run()
    queue.end_sync(sync)
    queue.close()
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_in_a_later_file_adds_nothing(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.put(records(4))
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.0*.dat")}
    blocker = tmp_path / f"t.diskqueue.{max(numbers_in(tmp_path)) + 2:06d}.dat"
    blocker.mkdir()
    with pytest.raises(DiskError, match=f"^open {blocker}: is a directory$"):
        queue.put(records(20, first=4))
    blocker.rmdir()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.0*.dat")} == before
    queue.put(records(20, first=4))
    assert drained(queue) == records(24)
    queue.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.000000.dat").symlink_to("/dev/full")
    queue = DiskQueue(str(tmp_path), "t")
    queue.open()
    for _ in range(2):
        with pytest.raises(DiskError, match=r"^write /.*/t\.diskqueue\.000000\.dat: no space left on device$"):
            queue.put(records(1))
        assert queue.depth == 0
    (tmp_path / "t.diskqueue.000000.dat").unlink()
    queue.put(records(3))
    assert drained(queue) == records(3)
    queue.close()


def test_without_file_descriptors_nothing_is_lost(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.put(records(10))
    with no_descriptors(os.getpid()):
        with pytest.raises(DiskError, match="too many open files"):
            queue.take(ALL, ALL)
        with pytest.raises(DiskError, match="too many open files"):
            queue.put(records(10, first=10))
    assert drained(queue) == records(10)
    queue.close()
