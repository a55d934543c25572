"""Dead letters of rejected messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa

from gnsq_like import Reader
from gnsq_like.deadletter import DeadLetter, open_envelope
from gnsq_like.spark.format_options import parse_options
from gnsq_like.spark.pipeline.batches import PublishingLetters, pack_within
from gnsq_like.spark.sink import SinkOptions
from tests.support.daemons import running_nsqd


def test_a_dead_letter_has_all_and_the_reason() -> None:
    row = {
        "id": "0" * 16,
        "timestamp": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        "attempts": 3,
        "topic": "t",
        "channel": "c",
        "nsqd_address": "127.0.0.1:4150",
        "seen_at": datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
        "body": b"\xff" * 50,
        "reason": "it is not UTF-8",
    }
    with running_nsqd("process") as nsqd:
        given_options = {"topic": "dead", "nsqd_tcp_addresses": nsqd.tcp_address}
        work = PublishingLetters(parse_options(SinkOptions, given_options), "/rejected")
        try:
            work.add(pa.RecordBatch.from_pylist([row]))
            assert work.close() == 1
        finally:
            work.drop()
        with Reader("dead", "test", nsqd_tcp_addresses=[nsqd.tcp_address]) as reader, next(iter(reader)) as message:
            letter = open_envelope(message.body)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert letter == DeadLetter(
        "t", "c", "127.0.0.1:4150", "0" * 16, 3, int(at) * 10**9 + 678_901_000, int(at + 1) * 10**9, b"\xff" * 50,
        "it is not UTF-8",
    )  # fmt: skip


@given(st.one_of(st.binary(min_size=1), st.text(min_size=1).map(str.encode)), st.integers(1, 2000))
def test_a_long_letter_is_cut_and_says_so(body: bytes, times: int) -> None:
    letter = DeadLetter("t", "c", "127.0.0.1:4150", "0" * 16, 3, 10**9, 2 * 10**9, body * times, "why")
    packed = pack_within(1000, letter, "/rejected")
    assert len(packed) <= 1000
    opened = open_envelope(packed)
    assert letter.body.startswith(opened.body)
    if opened != letter:
        first = f"why (the first {len(opened.body)} of {len(letter.body)} bytes; the whole is in /rejected)"
        assert opened.reason == first
