"""Members of compressed files, and where the last complete one ends."""

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.tools.to_file.members import COMPRESSIONS, member_ends, new_member


def member(compression: str, data: bytes) -> bytes:
    compressor = new_member(compression, 0)
    return compressor.compress(data) + compressor.flush()


def decompressed(compression: str, data: bytes) -> bytes:
    if compression == "gzip":
        return gzip.decompress(data)
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
        return reader.read()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(parts=st.lists(st.binary(max_size=50), min_size=1, max_size=4), cut=st.integers(0, 10_000))
def test_a_file_cut_anywhere_has_its_members_before_the_cut(compression: str, parts: list[bytes], cut: int) -> None:
    members = [member(compression, part) for part in parts]
    ends = [sum(map(len, members[: number + 1])) for number in range(len(members))]
    whole = b"".join(members)
    cut %= len(whole) + 1
    assert list(member_ends(io.BytesIO(whole[:cut]), compression)) == [end for end in ends if end <= cut]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_follows_the_last_member_does_not_count(compression: str) -> None:
    good = member(compression, b"x" * 1_000_000) + member(compression, b"")
    for garbage in (b"\0" * 100_000, b"garbage", good[:9]):
        *_, end = member_ends(io.BytesIO(good + garbage), compression)
        assert end == len(good)
    assert decompressed(compression, good) == b"x" * 1_000_000
