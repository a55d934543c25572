"""The log: segments and END records by their numbers, the watermark, and unfinished batches."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.staging.offsets import Offset, Share
from gnsq_like.spark.staging.records import End, encode_segment
from gnsq_like.spark.staging.staging_log import StagingLog, base_of, staged_parts, unfinished_logs
from gnsq_like.spark.staging.store import Fenced, PosixStore
from tests.support.spark_points import ADDRESS, log_in, message


def test_segments_and_end_share_their_numbers(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    assert log.record(part, 0) is None
    assert log.publish(part, 0, encode_segment([message(1)]), 0)
    assert not log.seal(part, End(0, 1, "target"), 0)
    assert log.seal(part, End(1, 1, "target"), 1)
    assert not log.publish(part, 1, encode_segment([message(2)]), 0)
    [staged] = staged_parts(log.names())
    assert (staged.batch, staged.address, staged.records) == (1, ADDRESS, (0, 1))
    end = log.end_of(staged)
    assert end is not None
    assert (end.segments, end.taken, end.reason) == (1, 1, "target")


def test_after_the_watermark_nothing_is_published(tmp_path: Path) -> None:
    log, parts = log_in(tmp_path, 2)
    log.write_watermark(1)
    with pytest.raises(Fenced):
        log.publish(parts[0], 0, encode_segment([message(1)]), 0)
    assert log.publish(parts[1], 0, encode_segment([message(1)]), 0)


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
    log.publish(part, 0, encode_segment([message(1)]), 0)
    for _ in range(2):
        [staged] = staged_parts(log.names())
        log.seal_staged(staged)
    [staged] = staged_parts(log.names())
    assert staged.records == (0, 1)


def test_a_part_that_no_task_began_is_sealed_too(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    [planned] = log.batch_parts(1)
    assert (planned.address, planned.split, planned.records) == (ADDRESS, 0, ())
    log.seal_staged(planned)
    assert not log.publish(part, 0, encode_segment([message(1)]), 0)
    assert [each.records for each in log.batch_parts(1)] == [(0,)]
    # A part without a place accepts nothing anyway.
    log.write_plan(Offset(log.id, 2, {ADDRESS: Share(100)}))
    for planned in log.batch_parts(2):
        log.seal_staged(planned)
    assert [each.records for each in log.batch_parts(2)] == [()]


def test_unfinished_is_what_has_records_above_the_watermark(tmp_path: Path) -> None:
    log, parts = log_in(tmp_path, 3)
    assert unfinished_logs(log.store, log.base) == []
    for part in parts[:2]:
        log.publish(part, 0, encode_segment([message(part.batch)]), 0)
    assert unfinished_logs(log.store, log.base) == [(log.id, 1)]
    log.write_watermark(1)
    assert unfinished_logs(log.store, log.base) == [(log.id, 2)]
    log.retire(1)
    assert log.batches() == [2, 3]


@pytest.mark.parametrize("name", [".", ".."])
def test_no_topic_or_channel_leaves_the_location(name: str, tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "stage")
    log = StagingLog(store, base_of(name, name), "1")
    log.create()
    assert log.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["stage"]
