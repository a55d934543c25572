"""The index: which messages are copies of staged ones."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from gnsq_like.spark.staging import index
from gnsq_like.spark.staging.index import Known
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.records import End, RawMessage, encode_segment
from gnsq_like.spark.staging.staging_log import Confirmed, StagedPart, StagingLog
from tests.support.spark_points import ADDRESS, log_in, message

WINDOW = 600.0
#: Times at which nsqd was started.
OLD, NEW = 1_790_000_000, 1_790_000_500


def stage(log: StagingLog, part: Part, *segments: list[int], start: int = OLD, seal: bool = True) -> StagedPart:
    """Publish segments of messages of these numbers."""
    log.note_start(part, start)
    for number, numbers in enumerate(segments):
        assert log.publish(part, number, encode_segment([message(each) for each in numbers]), 0)
    if seal:
        assert log.seal(part, End(len(segments), 0, "target"), 0)
    return log.staged(part)


def fresh(
    log: StagingLog,
    part: Part,
    *messages: RawMessage,
    start: int = OLD,
    within: float = WINDOW,
    suspicious: bool = False,
) -> list[int]:
    """The timestamps of those that are no copies; these are their numbers."""
    known = Known(log, part, within)
    known.begin(start)
    return [each[0] for each in known.fresh(messages, suspicious=suspicious)]


@pytest.mark.parametrize("written", [False, True])
def test_attempts_decide_what_is_looked_up(tmp_path: Path, written: bool) -> None:
    log, [part, another] = log_in(tmp_path, 2)
    staged = stage(log, part, [1, 2], [3])
    index.make_places(log, [ADDRESS])
    if written:
        index.remember(log, staged, time.time())
    assert fresh(log, another, message(1, 2), message(3, 3), message(4, 2), message(2, 1)) == [4, 2]
    assert fresh(log, another, message(1, 1)) == [1]
    assert fresh(log, another, message(1, 1), message(4, 1), suspicious=True) == [4]
    assert fresh(log, another, message(5, 1), message(5, 2)) == [5]
    elsewhere = replace(another, address="other:4150")
    log.make_parts([elsewhere])
    assert fresh(log, elsewhere, message(1, 2)) == [1]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(("start", "expected"), [(OLD, [1, 4]), (NEW, [4]), (0, [4])])
def test_after_a_restart_first_deliveries_are_looked_up(
    tmp_path: Path, written: bool, start: int, expected: list[int]
) -> None:
    log, [part, another] = log_in(tmp_path, 2)
    staged = stage(log, part, [1, 2], [3])
    index.make_places(log, [ADDRESS])
    if written:
        index.remember(log, staged, time.time())
    assert fresh(log, another, message(1), message(4), start=start) == expected


def test_a_start_time_that_is_unknown_is_another_one(tmp_path: Path) -> None:
    log, [part, another] = log_in(tmp_path, 2)
    index.make_places(log, [ADDRESS])
    index.remember(log, stage(log, part, [1], start=0), time.time())
    assert fresh(log, another, message(1), message(2)) == [2]


def test_what_a_late_task_stages_after_the_restart_is_seen(tmp_path: Path) -> None:
    log, [part, another] = log_in(tmp_path, 2)
    stage(log, part, [1], seal=False)
    known = Known(log, another, WINDOW)
    known.begin(NEW)
    assert known.fresh([message(1), message(2)]) == [message(2)]
    log.publish(part, 1, encode_segment([message(3)]), 1)
    assert known.fresh([message(3), message(4)]) == [message(4)]


@pytest.mark.parametrize("before", [False, True])
def test_a_restarted_nsqd_may_deliver_a_message_twice_for_the_first_time(tmp_path: Path, before: bool) -> None:
    """It reads its topic's queue again, and its channel's, which have the same messages."""
    log, [part, another] = log_in(tmp_path, 2)
    index.make_places(log, [ADDRESS])
    if before:
        index.remember(log, stage(log, part, [1]), time.time())
    start = NEW if before else int(time.time()) - 5
    known = Known(log, another, WINDOW)
    known.begin(start)
    assert known.fresh([message(2)]) == [message(2)]
    log.publish(another, 0, encode_segment([message(2)]), 0)
    known.staged(0, [message(2)])
    assert known.fresh([message(2), message(3)]) == [message(3)]


def test_a_part_that_two_nsqds_have_filled(tmp_path: Path) -> None:
    """An attempt goes on after nsqd was restarted: what the first one staged may come again."""
    log, [part, another] = log_in(tmp_path, 2)
    index.make_places(log, [ADDRESS])
    stage(log, part, [1], seal=False)
    known = Known(log, part, WINDOW)
    known.begin(NEW)
    assert known.fresh([message(1), message(2)]) == [message(2)]
    log.publish(part, 1, encode_segment([message(2)]), 1)
    log.seal(part, End(2, 2, "target"), 2)
    index.remember(log, log.staged(part), time.time())
    for start in (OLD, NEW):
        assert fresh(log, another, message(1), message(2), message(3), start=start) == [3]


def test_ids_outlive_their_batch_for_their_time(tmp_path: Path) -> None:
    log, [part, another] = log_in(tmp_path, 2)
    index.make_places(log, [ADDRESS])
    staged = stage(log, part, [1, 2], [3, 4])
    log.confirm(part, Confirmed(frozenset([1]), frozenset([message(4)[2]]), 0, 0))
    staged = log.staged(part)
    now = time.time()
    index.remember(log, staged, now - 300)
    index.remember_unsure(log, staged, now - 300)
    log.write_watermark(1)
    log.retire(1)
    again = [message(number, 2) for number in range(1, 6)]
    assert fresh(log, another, *again) == [5]
    index.tidy(log, WINDOW)
    assert fresh(log, another, *again) == [5]
    index.tidy(log, 200.0)
    assert fresh(log, another, *again) == [3, 5]
    assert fresh(log, another, *again, within=0) == [3, 5]
    assert len(log.store.list(f"{log.base}/ids")) == 1


def test_small_files_are_put_together(tmp_path: Path) -> None:
    log, parts = log_in(tmp_path, 41)
    index.make_places(log, [ADDRESS])
    for part in parts[:40]:
        index.remember(log, stage(log, part, [part.batch], start=OLD if part.batch % 2 else NEW), time.time())
        index.tidy(log, WINDOW)
        assert len(log.store.list(f"{log.base}/ids")) <= 4 * 15
    log.write_watermark(40)
    last = parts[40]
    again = [message(number, 2) for number in range(1, 42)]
    assert fresh(log, last, *again) == [41]
    assert fresh(log, last, *[message(number) for number in range(1, 42)], start=NEW) == [41]


def test_a_file_is_written_once(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    index.make_places(log, [ADDRESS])
    staged = stage(log, part, [1])
    for at in (1.0, 2.0):
        index.remember(log, staged, at)
    assert len(log.store.list(f"{log.base}/ids")) == 1


def test_a_damaged_file_of_ids_is_as_good_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, [part, another] = log_in(tmp_path, 2)
    index.make_places(log, [ADDRESS])
    index.remember(log, stage(log, part, [1]), time.time())
    [name] = log.store.list(f"{log.base}/ids")
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    assert fresh(log, another, message(1, 2)) == [1]
    assert "is damaged: copies of its messages would not be recognized" in caplog.text


@given(st.lists(st.binary(min_size=16, max_size=16) | st.integers(0, 2**64 - 1).map(lambda each: b"%016x" % each)))
def test_ids_as_numbers(ids: list[bytes]) -> None:
    """Those of other servers may be any 16 bytes: they are not remembered, and no other id is taken for one."""
    found = [int(each, 16) for each in ids if each.isalnum() and _is_hex(each)]
    assert list(index._numbers(ids)) == sorted(found)
    assert [index._number(each) is not None for each in ids] == [_is_hex(each) for each in ids]


def _is_hex(value: bytes) -> bool:
    return set(value) <= set(b"0123456789abcdef")
