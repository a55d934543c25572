"""Damaged files of a disk queue: what is lost is what the damage covers, and nothing that came before or after it."""

import re
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_like.server.broker.message import MessageIds
from gnsq_like.server.storage.disk_queue import DiskQueue
from gnsq_like.server.storage.records import HEADER, HEADER_BYTES, SIZE_BYTES, Record
from tests.support.files import memory_directory
from tests.support.scale import share_of

#: More than anything here has.
ALL = 1 << 30
#: 2026-01-01, in nanoseconds.
NOW_NS = 1_767_225_600 * 10**9
FILE = "t.diskqueue.000000.dat"


def opened(directory: Path, max_bytes_per_file: int = ALL) -> DiskQueue:
    queue = DiskQueue(str(directory), "t", max_bytes_per_file)
    queue.open([path.name for path in directory.glob("t.diskqueue.*")])
    return queue


def encoded(record: Record) -> bytes:
    timestamp_ns, attempts, message_id, body = record
    return HEADER.pack(HEADER_BYTES - SIZE_BYTES + len(body), timestamp_ns, attempts, message_id) + body


def records(bodies: list[bytes], seconds: int = 0) -> list[Record]:
    """Messages as nsqd makes them, some milliseconds apart."""
    ids = MessageIds(node_id=7)
    times = [NOW_NS + seconds * 10**9 + 3_000_000 * n for n in range(len(bodies))]
    return [(at, 1, ids.make(1, at)[0], body) for at, body in zip(times, bodies, strict=True)]


def taken_after(data: bytes, more: list[Record]) -> tuple[list[Record], list[Record]]:
    """What a queue returns whose file was found like this at a restart: before and after further messages."""
    with memory_directory() as name:
        directory = Path(name)
        (directory / FILE).write_bytes(data)
        queue = opened(directory)
        queue.put(more)
        found = queue.take(ALL, ALL)
        assert queue.depth == 0
        queue.close()
        old = [record for record in found if record not in more]
        assert found[len(old) :] == more
        kept = directory / f"{FILE}.bad"
        is_complete = sum(len(encoded(record)) for record in old) == len(data)
        assert is_complete or kept.read_bytes() == data
        return old, found[len(old) :]


texts = st.binary(max_size=80).map(lambda body: body.hex().encode() + b".")
#: A body that has whole records in it, which are older than its message.
nests = st.lists(texts, min_size=1, max_size=4).map(lambda bodies: b"".join(map(encoded, records(bodies, -3600))))
bodies = st.lists(texts | nests | st.tuples(texts, nests, texts).map(b"".join), min_size=2, max_size=12)


def is_ambiguous(data: bytes | bytearray, start: int, ends: list[int]) -> bool:
    """Whether a record's size, with a wrong bit or none, leads to a record within a body, or to one of ``ends``."""
    size = int.from_bytes(data[start : start + SIZE_BYTES])
    explained = {start + SIZE_BYTES + size, *(start + SIZE_BYTES + (size ^ 1 << bit) for bit in range(32))}
    inner = {match.start() - 14 for match in re.finditer(rb"171498[0-9a-f]{10}", data)}
    return bool(explained & {*ends, *inner})


@settings(max_examples=share_of(600), deadline=None)
@given(
    bodies,
    st.integers(0, 11),
    st.sampled_from([*range(4), *range(HEADER_BYTES - 16, HEADER_BYTES)]),
    st.integers(0, 7),
)
def test_a_wrong_bit_in_a_size_or_id_costs_one_message(bodies: list[bytes], which: int, byte: int, bit: int) -> None:
    written = records(bodies)
    which %= len(written)
    start = sum(len(encoded(record)) for record in written[:which])
    data = bytearray(b"".join(map(encoded, written)))
    data[start + byte] ^= 1 << bit
    if byte < 4:
        ends = list(accumulate(len(encoded(record)) for record in written))
        if is_ambiguous(data, start, [end for end in ends if end != ends[which]]):
            return  # the limit: a size that leads exactly to a later record
    elif chr(data[start + byte]) in "0123456789abcdef":
        return  # another id
    more = records([b"later %d" % n for n in range(50)], 60)
    assert taken_after(bytes(data), more) == (written[:which] + written[which + 1 :], more)


@pytest.mark.parametrize("byte", [*range(4), *range(HEADER_BYTES - 16, HEADER_BYTES)])
def test_any_wrong_byte_in_a_size_or_id_costs_one_message(byte: int) -> None:
    written = records([b"message %d, " % n * (n + 1) for n in range(20)])
    whole = b"".join(map(encoded, written))
    ends = list(accumulate(len(encoded(record)) for record in written))
    more = records([b"later %d" % n for n in range(50)], 60)
    for value in range(256):
        which = (0, 7, 19)[value % 3]
        start = sum(len(encoded(record)) for record in written[:which])
        data = bytearray(whole)
        data[start + byte] = value
        size = int.from_bytes(data[start : start + 4], signed=True)
        is_limit = start + SIZE_BYTES + size in ends and byte < 4
        if value == whole[start + byte] or is_limit or (byte >= 4 and chr(value) in "0123456789abcdef"):
            continue
        assert taken_after(bytes(data), more) == (written[:which] + written[which + 1 :], more), value


@settings(max_examples=share_of(400), deadline=None)
@given(bodies, st.floats(0, 1, exclude_max=True), st.sampled_from([0, 1, 29, 30, 500, 5000]))
def test_a_torn_or_zeroed_tail_costs_only_what_it_covers(bodies: list[bytes], where: float, zeros: int) -> None:
    written = records(bodies)
    whole = b"".join(map(encoded, written))
    at = int(where * len(whole)) + 1
    ends = list(accumulate(len(encoded(record)) for record in written))
    complete = [record for record, end in zip(written, ends, strict=True) if end <= at]
    if at + zeros in ends or is_ambiguous(whole[:at], max([0, *(end for end in ends if end <= at)]), [at]):
        return  # the limit: zeros that end with the file, or as above
    more = records([b"later %d" % n for n in range(50)], 60)
    assert taken_after(whole[:at] + bytes(zeros), more) == (complete, more)


def test_metadata_names_nothing_that_is_not_on_the_disk(tmp_path: Path) -> None:
    """A crash may keep the metadata, which is renamed, and lose what was written before it."""
    queue = opened(tmp_path, 500)
    written = records([b"x" * 100] * 40)
    queue.put(written[:10])
    sync = queue.begin_sync()
    assert sync is not None
    queue.put(written[10:13])
    sync.run()
    queue.end_sync(sync)
    queue.put(written[13:])
    assert len(queue.take(15, ALL)) == 15  # beyond what is synced: files have ended, and the metadata was saved
    depth, read, write = (tmp_path / "t.diskqueue.meta.dat").read_text().split()
    assert (depth, read, write) == ("0", "5,0", "5,0")
    again = opened(tmp_path, 500)
    assert again.take(ALL, ALL) == written[15:]
    again.close()


def test_a_search_takes_steps_between_which_take_returns(tmp_path: Path) -> None:
    steps: list[None] = []
    written = records([b"before", b"damaged", b"behind"])
    parts = [encoded(record) for record in written]
    parts[1] = b"?" + parts[1][1:] + b"0123456789abcdef" * 100_000
    (tmp_path / FILE).write_bytes(b"".join(parts))
    queue = DiskQueue(str(tmp_path), "t", on_search=lambda: steps.append(None))
    queue.open([FILE])
    assert queue.depth == 2
    assert queue.take(ALL, ALL) == written[:1]
    assert len(steps) == 1
    while not (taken := queue.take(ALL, ALL)):
        assert len(steps) < 1000
    assert taken == written[2:]
    assert (len(steps) > 10, queue.depth) == (True, 0)
    queue.close()


def test_an_emptied_queue_continues_with_a_new_file(tmp_path: Path) -> None:
    written = records([b"x"] * 3)
    queue = opened(tmp_path)
    queue.put(written)
    assert queue.take(ALL, ALL) == written
    queue.close()
    queue = opened(tmp_path)
    assert queue.depth == 0
    assert not list(tmp_path.iterdir())
    queue.put(written)
    queue.close()
    assert not (tmp_path / FILE).exists()
    assert opened(tmp_path).take(ALL, ALL) == written


def test_new_files_have_numbers_above_those_of_damaged_ones(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.000004.dat.bad").write_bytes(b"kept")
    queue = opened(tmp_path)
    queue.put(records([b"x"]))
    queue.close()
    assert (tmp_path / "t.diskqueue.000005.dat").exists()
    assert (tmp_path / "t.diskqueue.000004.dat.bad").read_bytes() == b"kept"
