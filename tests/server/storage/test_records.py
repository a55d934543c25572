"""The records of a disk queue's files: read back in any portions, and never beyond an invalid one."""

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.storage.records import (
    HEADER,
    SIZE_BYTES,
    Damaged,
    Record,
    RecordReader,
    count_records,
    is_at_record,
)
from tests.support.files import memory_directory

ids = st.binary(min_size=8, max_size=8).map(lambda number: number.hex().encode())
records = st.lists(
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 65535), ids, st.binary(max_size=50)), min_size=1, max_size=20
)


def encoded(record: Record) -> bytes:
    timestamp_ns, attempts, message_id, body = record
    return HEADER.pack(HEADER.size - SIZE_BYTES + len(body), timestamp_ns, attempts, message_id) + body


@given(records, st.integers(1, 5), st.integers(1, 200))
def test_records_are_read_back_in_any_portions(written: list[Record], count: int, max_bytes: int) -> None:
    with memory_directory() as directory:
        path = Path(directory, "file")
        path.write_bytes(b"".join(map(encoded, written)))
        assert count_records(str(path), 0) == len(written)
        assert count_records(str(path), len(encoded(written[0]))) == len(written) - 1
        reader = RecordReader(str(path), 0)
        read: list[Record] = []
        while reader.position < reader.size:
            portion: list[Record] = []
            left = reader.take(portion, reader.size, count, max_bytes)
            sizes = [len(body) for *_, body in portion]
            assert 0 < len(portion) <= count
            assert left == max_bytes - sum(sizes)
            assert sum(sizes[:-1]) < max_bytes
            read += portion
        reader.close()
    assert read == written


@given(records, st.data())
def test_a_file_that_ends_early_gives_the_records_before(written: list[Record], data: st.DataObject) -> None:
    whole = b"".join(map(encoded, written))
    end = data.draw(st.integers(1, len(whole) - 1))
    with memory_directory() as directory:
        path = Path(directory, "file")
        path.write_bytes(whole[:end])
        reader = RecordReader(str(path))
        read: list[Record] = []
        if end in accumulate(len(encoded(record)) for record in written):
            reader.take(read, end, len(written), 1 << 30)
        else:
            with pytest.raises(Damaged):
                reader.take(read, end, len(written), 1 << 30)
        reader.close()
    assert read == written[: len(read)]


@given(records, st.data())
def test_positions_of_records_are_known_from_others(written: list[Record], data: st.DataObject) -> None:
    starts = [0, *accumulate(len(encoded(record)) for record in written)]
    with memory_directory() as directory:
        path = Path(directory, "file")
        path.write_bytes(b"".join(map(encoded, written)))
        assert all(is_at_record(str(path), start) for start in starts)
        at = data.draw(st.integers(0, starts[-1]))
        assert is_at_record(str(path), at) == (at in starts)


def test_what_does_not_exist_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert count_records(str(tmp_path / "missing"), 0) == 0
    assert count_records(str(tmp_path / "empty"), 0) == 0
    with pytest.raises(Damaged, match="no such file"):
        RecordReader(str(tmp_path / "missing"), 0)
