"""A directory in which other users may write, as /tmp is the default one: nothing that they put there is relied on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.files import NotOurs
from gnsq_like.tools.to_file.leftovers import Note, OpenFiles, recover
from gnsq_like.tools.to_file.log_file import LogFile
from gnsq_like.tools.to_file.outputs import UploadedTo, make_output
from gnsq_like.tools.to_file.plan import FilePlan
from gnsq_like.wire.names import is_valid_name
from tests.support.daemons import wait_for
from tests.support.files import as_nobody, needs_root, shared_directory
from tests.support.tools import files_below

NOTES = f".to-file-{os.getuid()}"
#: Files that the attacker must not get changed: without a newline, with a part of a line, whole.
PRIVATE = {"no-newline": b"binary\0\xff", "partial": b"line\npart", "whole": b"line\nline\n"}


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_directory() as directory:
        yield directory


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """Files of ours, which are unchanged at the end, with a link each."""
    directory = tmp_path / "private"
    directory.mkdir()
    for name, data in PRIVATE.items():
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o600)
    yield directory
    assert files_below(directory) == PRIVATE


def planned(directory: Path, **options: Any) -> FilePlan:
    return FilePlan(**{"output_dir": str(directory), "filename_format": "<TOPIC><REV>", **options})


def log_file(plan: FilePlan, topic: str = "t") -> LogFile:
    return LogFile(plan, topic, make_output(plan))


def recovered(plan: FilePlan) -> list[str]:
    return recover(plan, make_output(plan))


def note_of(name: str, like: Path, changed: dict[str, object] | None = None) -> tuple[str, str]:
    """The name and the content of a note that fits a file."""
    state = like.stat()
    content = {"name": name, "device": state.st_dev, "inode": state.st_ino, "size": 0, "made": True} | (changed or {})
    return hashlib.sha256(name.encode()).hexdigest()[:32], json.dumps(content)


# -- notes of open files ------------------------------------------------------------------------------

#: How the name of a private file gets into a note, or a file of that name into the shared directory.
Way = Callable[[Path, Path], str]


def absolute(shared: Path, target: Path) -> str:
    return str(target)


def relative(shared: Path, target: Path) -> str:
    return os.path.relpath(target, shared)


def linked(shared: Path, target: Path) -> str:
    (shared / "t-000000").symlink_to(target)
    return "t-000000"


def hard_linked(shared: Path, target: Path) -> str:
    """As nobody could where the kernel does not protect hard links."""
    os.link(target, shared / "t-000000")
    return "t-000000"


def below_a_link(shared: Path, target: Path) -> str:
    (shared / "d").symlink_to(target.parent)
    return f"d/{target.name}"


WAYS = (absolute, relative, linked, hard_linked, below_a_link)
ways = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize(
    ("kind", "target", "work_dir"), [("name", "no-newline", ""), ("note", "partial", "shared"), ("note", "whole", "")]
)
@ways
@needs_root
def test_notes_of_another_user_are_refused(
    way: Way, work_dir: str, target: str, kind: str, shared: Path, private: Path, tmp_path: Path
) -> None:
    name = way(shared, private / target)
    base, note = note_of(name, private / target)
    as_nobody("mkdir", shared / NOTES)
    as_nobody("sh", "-c", 'printf %s "$1" > "$2"', "-", name if kind == "name" else note, shared / NOTES / base)
    plan = planned(tmp_path / "out", work_dir=str(shared)) if work_dir else planned(shared)
    with pytest.raises(NotOurs) as caught:
        recovered(plan)
    assert caught.value.filename == str(shared / NOTES)


@needs_root
def test_a_link_in_the_place_of_the_notes_is_refused(shared: Path, private: Path) -> None:
    notes = private.parent / "notes"
    notes.mkdir(0o700)
    base, note = note_of(str(private / "partial"), private / "partial")
    (notes / base).write_text(note)
    as_nobody("ln", "-s", notes, shared / NOTES)
    plan = planned(shared)
    with pytest.raises(NotOurs):
        recovered(plan)
    log = log_file(plan)
    with pytest.raises(NotOurs):
        log.write([b"x"], sync=True)
    assert list(notes.iterdir()) == [notes / base]


@pytest.mark.parametrize(("mode", "way"), [*zip([0o770, 0o777, 0o707, 0o1777, 0o1700], WAYS, strict=True)])
def test_notes_that_others_could_write_are_reported_and_dropped(
    way: Way, mode: int, tmp_path: Path, private: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1700 is what a kill between taking the rights away and dropping the notes leaves."""
    plan = planned(tmp_path)
    name = way(tmp_path, private / "partial")
    (tmp_path / NOTES).mkdir()
    base, note = note_of(name, private / "partial")
    (tmp_path / NOTES / base).write_text(note)
    (tmp_path / NOTES / "nested").write_text("[" * 30_000)
    (tmp_path / NOTES / "link").symlink_to(private / "whole")
    os.mkfifo(tmp_path / NOTES / "pipe")
    (tmp_path / NOTES).chmod(mode)
    assert recovered(plan) == []
    assert name in caplog.text
    assert list((tmp_path / NOTES).iterdir()) == []
    assert stat.S_IMODE((tmp_path / NOTES).stat().st_mode) == 0o700


def test_notes_stay_untrusted_until_they_were_dropped(tmp_path: Path, private: Path) -> None:
    """Opening a file makes the directory narrow, too."""
    base, note = note_of("d/partial", private / "partial")
    (tmp_path / "d").symlink_to(private)
    (tmp_path / NOTES).mkdir()
    (tmp_path / NOTES / base).write_text(note)
    (tmp_path / NOTES).chmod(0o777)
    log = log_file(planned(tmp_path))
    log.write([b"x"], sync=True)
    log.abandon()
    assert stat.S_IMODE((tmp_path / NOTES).stat().st_mode) & 0o777 == 0o700
    assert recovered(planned(tmp_path)) == []


def test_notes_that_others_could_only_read_count(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    log = log_file(plan)
    log.write([b"one"], sync=True)
    log.abandon()
    with (tmp_path / "t").open("ab") as file:
        file.write(b"tw")
    (tmp_path / NOTES).chmod(0o755)
    assert recovered(plan) == ["t"]
    assert (tmp_path / "t").read_bytes() == b"one\n"
    assert stat.S_IMODE((tmp_path / NOTES).stat().st_mode) == 0o700


@ways
def test_a_note_of_ours_does_not_lead_elsewhere(
    way: Way, tmp_path: Path, private: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The notes are ours, and somebody has replaced the file, or a directory on the way to it."""
    plan = planned(tmp_path)
    log = log_file(plan)
    log.write([b"one"], sync=True)
    log.abandon()
    name = way(tmp_path, private / "partial")
    base, note = note_of(name, tmp_path / "t")
    (tmp_path / NOTES / base).write_text(note)
    assert "t" in recovered(plan)
    assert name.rpartition("/")[2] in caplog.text
    assert list((tmp_path / NOTES).iterdir()) == []


@pytest.mark.parametrize("changed", [{"inode": 1}, {"device": 1}, {"size": 100}, {"made": 3, "more": 1}, {"name": 7}])
def test_a_note_that_does_not_fit_is_reported_and_its_file_left(
    changed: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t").write_bytes(b"one\ntw")
    base, note = note_of("t", tmp_path / "t", changed)
    (tmp_path / NOTES).mkdir(0o700)
    (tmp_path / NOTES / base).write_text(note)
    recovered(planned(tmp_path))
    assert files_below(tmp_path) == {"t": b"one\ntw"}
    assert caplog.records


def test_what_was_there_before_is_never_cut(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"one\ntheir part")
    for written in (b"", b"ours"):
        log = log_file(planned(tmp_path))
        log.write([], sync=False)
        log.tick()
        log.abandon()
        with (tmp_path / "t").open("ab") as file:
            file.write(written)
        assert recovered(planned(tmp_path)) == ["t"]
        assert (tmp_path / "t").read_bytes() == b"one\ntheir part"


def test_only_a_file_that_was_made_is_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    for topic in ("theirs", "made"):
        log = log_file(planned(tmp_path), topic)
        log.tick()
        log.abandon()
    assert sorted(recovered(planned(tmp_path))) == ["made", "theirs"]
    assert files_below(tmp_path) == {"theirs": b""}


@pytest.mark.parametrize("content", [None, b"", b"theirs"])
def test_a_kill_while_a_file_is_made_leaves_no_empty_one(content: bytes | None, tmp_path: Path) -> None:
    """It was noted, and perhaps made; or somebody else has made one of that name."""
    OpenFiles(str(tmp_path)).add(Note("t"))
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    assert recovered(planned(tmp_path)) == ["t"]
    assert files_below(tmp_path) == ({"t": content} if content else {})


@pytest.mark.skipif(not os.access("/proc/locks", os.R_OK), reason="no /proc/locks")
def test_a_file_that_another_process_recovers_is_opened_after_that(tmp_path: Path) -> None:
    """It was empty, so the other removes it."""
    (tmp_path / "t").touch()
    with (tmp_path / "t").open("rb") as other, ThreadPoolExecutor(1) as thread:
        fcntl.flock(other, fcntl.LOCK_EX)
        log = log_file(planned(tmp_path))
        writing = thread.submit(log.write, [b"x"], True)
        wait_for(lambda: has_waiter(other.fileno()), "the lock is awaited")
        (tmp_path / "t").unlink()
        fcntl.flock(other, fcntl.LOCK_UN)
        assert writing.result()
    log.close()
    assert (tmp_path / "t").read_bytes() == b"x\n"


def has_waiter(file: int) -> bool:
    """Whether somebody waits for the lock on a file; Linux shows it behind an arrow."""
    inode = os.fstat(file).st_ino
    return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_notes_may_go_while_they_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes = OpenFiles(str(tmp_path))
    both = [Note("a"), Note("b")]
    for note in both:
        notes.add(note)
    remaining = iter(notes)
    first = next(remaining)
    for note in both:
        notes.remove(note)
    assert first in both
    assert list(remaining) == []
    assert caplog.records == []


def test_a_file_with_another_link_is_not_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = log_file(planned(tmp_path))
    log.write([b"one"], sync=True)
    log.abandon()
    with (tmp_path / "t").open("ab") as file:
        file.write(b"tw")
    os.link(tmp_path / "t", tmp_path / "other")
    recovered(planned(tmp_path))
    assert (tmp_path / "other").read_bytes() == b"one\ntw"
    assert "2 links" in caplog.text


def test_a_move_that_was_interrupted_between_its_links_is_completed(tmp_path: Path) -> None:
    plan = planned(tmp_path / "out", work_dir=str(tmp_path / "work"))
    log = log_file(plan)
    log.write([b"one"], sync=True)
    log.abandon()
    (tmp_path / "out").mkdir()
    os.link(tmp_path / "work" / "t-000000", tmp_path / "out" / "t-000000")
    assert recovered(plan) == ["t-000000"]
    assert files_below(tmp_path) == {"out/t-000000": b"one\n"}


# -- the file that is written -------------------------------------------------------------------------


def _plant(what: str, at: Path, private: Path) -> None:
    """Put something there as nobody, or as root what nobody could where the kernel does not protect hard links."""
    if what == "hard link":
        os.link(private / "whole", at)
    elif what == "link on the way":
        as_nobody("ln", "-s", private, at.parent / "d")
    else:
        commands: dict[str, tuple[object, ...]] = {
            "link": ("ln", "-s", private / "whole"),
            "link to nowhere": ("ln", "-s", private / "new"),
            "file": ("touch",),
            "pipe": ("mkfifo",),
        }
        as_nobody(*commands[what], at)


planted = pytest.mark.parametrize("what", ["link", "link to nowhere", "hard link", "file", "pipe", "link on the way"])


@planted
@needs_root
def test_nothing_is_written_into_what_others_may_have_put_there(what: str, shared: Path, private: Path) -> None:
    name_format = "d/whole" if what == "link on the way" else "<TOPIC>"
    _plant(what, shared / "t", private)
    log = log_file(planned(shared, filename_format=name_format))
    with pytest.raises(NotOurs):
        log.write([b"secret"], sync=True)
    assert b"secret" not in [path.read_bytes() for path in shared.iterdir() if path.is_file() and not path.is_symlink()]
    assert not (private / "new").exists()


@pytest.mark.parametrize("what", ["link", "link to nowhere", "hard link", "file", "pipe"])
@needs_root
def test_a_file_that_must_be_new_takes_the_next_number(what: str, shared: Path, private: Path) -> None:
    _plant(what, shared / "t-000000.gz", private)
    log = log_file(planned(shared, compression="gzip"))
    log.write([b"x"], sync=True)
    log.close()
    assert (shared / "t-000001.gz").stat().st_size > 0


def test_a_file_of_ours_is_appended_to(shared: Path) -> None:
    for _ in range(2):
        log = log_file(planned(shared))
        log.write([b"x"], sync=True)
        log.close()
    assert (shared / "t").read_bytes() == b"x\nx\n"


def test_in_a_directory_of_ours_alone_a_file_may_have_links(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"one\n")
    os.link(tmp_path / "t", tmp_path / "backup")
    log = log_file(planned(tmp_path))
    log.write([b"two"], sync=True)
    log.close()
    assert (tmp_path / "backup").read_bytes() == b"one\ntwo\n"


# -- where it goes --------------------------------------------------------------------------------------


@needs_root
def test_a_closed_file_is_not_moved_through_a_link(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    plan = planned(shared, work_dir=str(tmp_path / "work"), filename_format="d/<TOPIC><REV>")
    log = log_file(plan)
    log.write([b"x"], sync=True)
    as_nobody("ln", "-s", tmp_path / "private", shared / "d")
    with pytest.raises(NotOurs):
        log.close()
    assert files_below(tmp_path / "private") == {}
    assert (tmp_path / "work" / "d" / "t-000000").read_bytes() == b"x\n"


@pytest.mark.parametrize("what", ["link", "hard link"])
@needs_root
def test_what_replaced_a_closed_file_is_not_moved(what: str, shared: Path, private: Path, tmp_path: Path) -> None:
    output = make_output(planned(tmp_path / "out", work_dir=str(shared)))
    shared.chmod(0o777)  # without the sticky bit, anyone may remove the file
    _plant(what, shared / "t-000000", private)
    with pytest.raises(NotOurs):
        output.take("t-000000", "t<REV>", 0)
    assert files_below(tmp_path / "out") == {}
    (shared / "t-000000").unlink()


def uploading(work_dir: Path) -> UploadedTo:
    return UploadedTo(f"file://{work_dir.parent}/store", str(work_dir))


def upload_all(output: UploadedTo) -> None:
    for name in output.waiting():
        output.upload(name)


@pytest.mark.parametrize("what", ["directory", "link"])
@needs_root
def test_uploads_in_a_directory_of_another_user_are_refused(what: str, shared: Path, private: Path) -> None:
    as_nobody(*(("mkdir",) if what == "directory" else ("ln", "-s", private)), shared / ".upload")
    with pytest.raises(NotOurs):
        uploading(shared)


@pytest.mark.parametrize("place", ["", "d"])
@pytest.mark.parametrize("what", ["link", "hard link", "file", "pipe"])
@needs_root
def test_only_files_of_ours_are_uploaded(
    what: str, place: str, shared: Path, private: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = shared / ".upload" / place
    waiting.mkdir(parents=True)
    (waiting / "ours").write_bytes(b"ours")
    for each in {shared / ".upload", waiting}:
        each.chmod(0o777)
    _plant(what, waiting / "theirs", private)
    as_nobody("sh", "-c", 'printf %s "$1" > "$2"', "-", f"{shared.parent}/elsewhere", waiting / ".ours.target")
    output = uploading(shared)
    upload_all(output)
    upload_all(output)
    assert files_below(shared.parent / "store") == {str(Path(place, "ours")): b"ours"}
    assert len([each for each in caplog.records if "is not uploaded" in each.message]) == 1
    assert not (shared.parent / "elsewhere").exists()
    assert {stat.S_IMODE(each.stat().st_mode) for each in {shared / ".upload", waiting}} == {0o700}
    (waiting / "theirs").unlink()


@needs_root
def test_a_directory_of_another_user_among_the_uploads_is_left_out(shared: Path) -> None:
    (shared / ".upload").mkdir()
    (shared / ".upload").chmod(0o777)
    as_nobody("mkdir", shared / ".upload" / "d")
    (shared / ".upload" / "d" / "ours").write_bytes(b"moved there by nobody")
    upload_all(uploading(shared))
    assert not (shared.parent / "store").exists()


def test_an_object_that_is_a_link_counts_as_taken(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "t.log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "work" / "t.log").write_bytes(b"x")
    output = uploading(tmp_path / "work")
    output.take("t.log", "t.log", 0)
    upload_all(output)
    assert (tmp_path / "store" / "t-1.log").read_bytes() == b"x"
    assert not (tmp_path / "elsewhere").exists()


# -- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [".", "..", "..."])
@pytest.mark.parametrize("name_format", ["<TOPIC>", "<TOPIC>/x", "x/<TOPIC>/<TOPIC>", "/<TOPIC>", "<TOPIC><DATETIME>"])
def test_no_topic_leaves_the_directory(topic: str, name_format: str, tmp_path: Path) -> None:
    plan = planned(tmp_path / "a" / "b", filename_format=name_format, datetime_format="")
    log = log_file(plan, topic)
    log.write([b"x"], sync=True)
    log.close()
    (found,) = files_below(tmp_path)
    assert found.startswith("a/b/")


parts = st.lists(st.sampled_from(["<TOPIC>", "<HOST>", "<DATETIME>", ".", "/", "x"]), min_size=1, max_size=6).map(
    "".join
)


@given(parts, st.text(st.sampled_from("ab._-"), min_size=1, max_size=4), st.sampled_from(["", ".", "%Y/%m", "..", "/"]))
def test_names_stay_below_the_directory(name_format: str, topic: str, datetime_format: str) -> None:
    assert is_valid_name(topic)
    try:
        plan = FilePlan(filename_format=name_format, datetime_format=datetime_format, host_identifier="..")
    except InvalidOption:
        return
    name = plan.dated(plan.template(topic), 0.0)
    assert not os.path.isabs(name)
    assert not {".", ".."} & set(name.split("/"))


@pytest.mark.parametrize("name_format", ["../<TOPIC>", "a/../../<TOPIC>", "<TOPIC>/..", "..", "."])
def test_a_format_that_leaves_the_directory_is_refused(name_format: str) -> None:
    with pytest.raises(InvalidOption, match="filename_format"):
        FilePlan(filename_format=name_format)
