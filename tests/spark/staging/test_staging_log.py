"""The log, its segments and the index: what is staged, by which names, and what is known of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from gnsq_like.spark.options import COLUMNS  # noqa: E402
from gnsq_like.spark.staging import index  # noqa: E402
from gnsq_like.spark.staging.errors import Fenced  # noqa: E402
from gnsq_like.spark.staging.index import Known  # noqa: E402
from gnsq_like.spark.staging.offsets import Offset, Part, Share  # noqa: E402
from gnsq_like.spark.staging.segments import RawMessage, Rows, decode_segment, encode_segment, ids_of  # noqa: E402
from gnsq_like.spark.staging.staging_log import (  # noqa: E402
    StagingLog,
    base_of,
    is_end,
    read_confirmed,
    staged_parts,
    unfinished_logs,
)
from gnsq_like.spark.staging.store import PosixStore  # noqa: E402

messages = st.lists(
    st.tuples(
        st.integers(0, 2**62), st.integers(1, 2**16 - 1), st.binary(min_size=16, max_size=16), st.binary(max_size=50)
    ),
    min_size=1,
    max_size=20,
)

ADDRESS = "[::1]:4150"


def message(number: int, attempts: int = 1) -> RawMessage:
    return (number, attempts, b"%016x" % number, b"body %d" % number)


def log_in(directory: Path, batches: int = 1) -> tuple[StagingLog, list[Part]]:
    """A log with so many planned batches, and the one part of each."""
    log = StagingLog(PosixStore(directory), base_of("topic#ephemeral", "channel"), directory.name)
    log.create()
    parts = []
    for batch in range(1, batches + 1):
        offset = Offset(log.id, batch, {ADDRESS: Share(100)})
        log.write_plan(offset)
        parts += offset.parts()
    log.make_parts(parts)
    return log, parts


# -- segments ---------------------------------------------------------------------------------------------


@given(messages)
def test_a_segment_holds_its_messages(given_messages: list[RawMessage]) -> None:
    data = encode_segment(given_messages)
    staged = decode_segment(data)
    rows = zip(*(staged.column(name).to_pylist() for name in ("timestamp_ns", "attempts", "id", "body")), strict=True)
    assert list(rows) == given_messages
    assert ids_of(data) == [each[2] for each in given_messages]
    assert not is_end(data)


@given(messages, st.permutations(list(COLUMNS)).flatmap(lambda names: st.integers(1, 8).map(lambda n: names[:n])))
def test_rows_have_the_columns_asked_for(given_messages: list[RawMessage], columns: list[str]) -> None:
    rows = Rows(columns, "clicks", "spark", ADDRESS).of(encode_segment(given_messages))
    assert rows.schema.names == columns
    expected = {
        "id": [each[2].decode("utf-8") if _is_text(each[2]) else None for each in given_messages],
        "body": [each[3] for each in given_messages],
        "timestamp_ns": [each[0] for each in given_messages],
        "attempts": [each[1] for each in given_messages],
        "topic": ["clicks"] * len(given_messages),
        "channel": ["spark"] * len(given_messages),
        "nsqd_address": [ADDRESS] * len(given_messages),
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
    rows = Rows(["timestamp"], "", "", "").of(encode_segment([(1_700_000_000_123_456_789, 1, b"0" * 16, b"")]))
    assert rows.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert rows.column(0).to_pylist() == [datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_456)]


# -- the log ----------------------------------------------------------------------------------------------


def test_segments_and_end_share_their_numbers(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    assert log.record(part, 0) is None
    assert log.publish(part, 0, encode_segment([message(1)]))
    assert not log.seal(part, 0, 1, "target")
    assert log.seal(part, 1, 1, "target")
    assert not log.publish(part, 1, encode_segment([message(2)]))
    [staged] = staged_parts(log.names())
    assert (staged.batch, staged.address, staged.records) == (1, ADDRESS, (0, 1))
    end = log.end_of(staged)
    assert end is not None
    assert (end.segments, end.taken, end.reason) == (1, 1, "target")


def test_after_the_watermark_nothing_is_published(tmp_path: Path) -> None:
    log, parts = log_in(tmp_path, 2)
    log.write_watermark(1)
    with pytest.raises(Fenced):
        log.publish(parts[0], 0, encode_segment([message(1)]))
    assert log.publish(parts[1], 0, encode_segment([message(1)]))


def test_the_watermark_only_rises(tmp_path: Path) -> None:
    log, _ = log_in(tmp_path)
    assert log.committed() == 0
    for batch in (1, 2, 3, 4, 5, 9):
        log.write_watermark(batch)
    assert log.committed() == 9
    log.write_watermark(4)
    assert log.committed() == 9


def test_a_part_left_open_is_sealed(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    log.publish(part, 0, encode_segment([message(1)]))
    for _ in range(2):
        [staged] = staged_parts(log.names())
        log.seal_staged(staged)
    [staged] = staged_parts(log.names())
    assert staged.records == (0, 1)


def test_a_part_that_nobody_began_is_sealed_too(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    [planned] = log.batch_parts(1)
    assert (planned.address, planned.split, planned.records) == (ADDRESS, 0, ())
    log.seal_staged(planned)
    assert not log.publish(part, 0, encode_segment([message(1)]))
    assert [each.records for each in log.batch_parts(1)] == [(0,)]
    # One without a place takes nothing anyway.
    log.write_plan(Offset(log.id, 2, {ADDRESS: Share(100)}))
    for planned in log.batch_parts(2):
        log.seal_staged(planned)
    assert [each.records for each in log.batch_parts(2)] == [()]


def test_unfinished_is_what_has_records_above_the_watermark(tmp_path: Path) -> None:
    log, parts = log_in(tmp_path, 3)
    assert unfinished_logs(log.store, log.base) == []
    for part in parts[:2]:
        log.publish(part, 0, encode_segment([message(part.batch)]))
    assert unfinished_logs(log.store, log.base) == [(log.id, 1)]
    log.write_watermark(1)
    assert unfinished_logs(log.store, log.base) == [(log.id, 2)]
    log.retire(1)
    assert log.batches() == [2, 3]


# -- the index --------------------------------------------------------------------------------------------


def fresh(
    log: StagingLog, *given_messages: RawMessage, dedupe: str = "unconfirmed", address: str = ADDRESS
) -> list[int]:
    return [each[0] for each in Known(log, address, dedupe).fresh(given_messages)]


def test_what_is_staged_and_not_confirmed_is_a_copy_when_it_comes_again(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    log.publish(part, 0, encode_segment([message(1), message(2)]))
    assert fresh(log, message(1, 2), message(3, 2), message(2, 1)) == [3]
    assert fresh(log, message(1, 1)) == [1]
    assert list(Known(log, ADDRESS, "unconfirmed").fresh([message(1), message(3)], suspicious=True)) == [message(3)]
    assert fresh(log, message(1, 2), dedupe="none") == [1]
    assert fresh(log, message(1, 2), address="other:4150") == [1]
    assert fresh(log, message(4, 2), message(4, 3)) == [4]
    log.confirm(part, [0], [message(2)[2]])
    assert fresh(log, message(1, 2), message(2, 2)) == [1]
    assert fresh(log, message(1), message(2), message(3), dedupe="window") == [3]


def test_what_is_unsure_outlives_its_batch_until_it_is_too_old(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    log.publish(part, 0, encode_segment([message(1), message(2)]))
    log.publish(part, 1, encode_segment([message(3), message(4)]))
    log.confirm(part, [1], [message(4)[2]])
    [staged] = staged_parts(log.names())
    assert read_confirmed(log.store, staged).failed == {message(4)[2]}
    index.remember(log, staged, window=True)
    log.write_watermark(1)
    log.retire(1)
    again = [message(number, 2) for number in range(1, 6)]
    assert fresh(log, *again) == [3, 5]
    assert fresh(log, *again, dedupe="window") == [5]
    index.forget(log, {"unsure": 1000.0, "window": -1.0})
    assert fresh(log, *again, dedupe="window") == [3, 5]
    index.forget(log, {"unsure": -1.0, "window": -1.0})
    assert fresh(log, *again) == [1, 2, 3, 4, 5]
