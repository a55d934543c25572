"""Segments: they hold their messages, and become the rows that are asked for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from gnsq_like.spark.format_options import COLUMNS  # noqa: E402
from gnsq_like.spark.staging.offsets import Part, TopicChannel  # noqa: E402
from gnsq_like.spark.staging.records import RawMessage, decode_segment, encode_segment, ids_of, segment_rows  # noqa: E402
from tests.support.spark_points import ADDRESS  # noqa: E402

messages = st.lists(
    st.tuples(
        st.integers(0, 2**62), st.integers(1, 2**16 - 1), st.binary(min_size=16, max_size=16), st.binary(max_size=50)
    ),
    min_size=1,
    max_size=20,
)


@given(messages)
def test_a_segment_holds_its_messages(given_messages: list[RawMessage]) -> None:
    data = encode_segment(given_messages)
    staged = decode_segment(data)
    rows = zip(*(staged.column(name).to_pylist() for name in ("timestamp_ns", "attempts", "id", "body")), strict=True)
    assert list(rows) == given_messages
    assert ids_of(data) == [each[2] for each in given_messages]


PART = Part("log", 1, ADDRESS, 0, 20, of=TopicChannel("clicks", "spark"), seen_us=1_700_000_000_123_456)


@given(messages, st.permutations(list(COLUMNS)).flatmap(lambda names: st.integers(1, 10).map(lambda n: names[:n])))
def test_rows_have_the_columns_asked_for(given_messages: list[RawMessage], columns: list[str]) -> None:
    rows = segment_rows(encode_segment(given_messages), columns, PART)
    assert rows.schema.names == columns
    expected = {
        "id": [each[2].decode("utf-8") if _is_text(each[2]) else None for each in given_messages],
        "body": [each[3] for each in given_messages],
        "timestamp_ns": [each[0] for each in given_messages],
        "attempts": [each[1] for each in given_messages],
        "topic": ["clicks"] * len(given_messages),
        "channel": ["spark"] * len(given_messages),
        "nsqd_address": [ADDRESS] * len(given_messages),
        "seen_at": [datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_456)] * len(given_messages),
        "size": [len(each[3]) for each in given_messages],
    }
    for name in set(columns) & set(expected) - {"id"}:
        assert rows.column(name).to_pylist() == expected[name]
    if "id" in columns and all(_is_text(each[2]) for each in given_messages):
        assert rows.column("id").to_pylist() == expected["id"]


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_timestamps_are_microseconds_in_utc() -> None:
    message = (1_700_000_000_123_456_789, 1, b"0" * 16, b"")
    rows = segment_rows(encode_segment([message]), ["timestamp", "seen_at"], replace(PART, seen_us=0))
    assert rows.schema.types == [pa.timestamp("us", tz="UTC")] * 2
    assert rows.column(0).to_pylist() == [datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_456)]
    # A batch that an earlier version has planned has no time.
    assert rows.column(1).to_pylist() == [None]
