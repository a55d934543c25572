"""The index: which redeliveries are copies of staged messages."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.staging import index
from gnsq_like.spark.staging.index import Known
from gnsq_like.spark.staging.segments import RawMessage, encode_segment
from gnsq_like.spark.staging.staging_log import Confirmed, StagingLog, read_confirmed, staged_parts
from tests.support.spark_points import ADDRESS, log_in, message


def fresh(
    log: StagingLog, *given_messages: RawMessage, dedupe: str = "unconfirmed", address: str = ADDRESS
) -> list[int]:
    return [each[0] for each in Known(log, address, dedupe).fresh(given_messages)]


def test_what_is_staged_and_not_confirmed_is_a_copy_when_it_comes_again(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    log.publish(part, 0, encode_segment([message(1), message(2)]), 0)
    assert fresh(log, message(1, 2), message(3, 2), message(2, 1)) == [3]
    assert fresh(log, message(1, 1)) == [1]
    assert list(Known(log, ADDRESS, "unconfirmed").fresh([message(1), message(3)], suspicious=True)) == [message(3)]
    assert fresh(log, message(1, 2), dedupe="none") == [1]
    assert fresh(log, message(1, 2), address="other:4150") == [1]
    assert fresh(log, message(4, 2), message(4, 3)) == [4]
    log.confirm(part, Confirmed(frozenset([0]), frozenset([message(2)[2]]), 0, 0))
    assert fresh(log, message(1, 2), message(2, 2)) == [1]
    assert fresh(log, message(1), message(2), message(3), dedupe="window") == [3]


def test_what_is_unsure_outlives_its_batch_until_it_is_too_old(tmp_path: Path) -> None:
    log, [part] = log_in(tmp_path)
    log.publish(part, 0, encode_segment([message(1), message(2)]), 0)
    log.publish(part, 1, encode_segment([message(3), message(4)]), 2)
    log.confirm(part, Confirmed(frozenset([1]), frozenset([message(4)[2]]), 0, 0))
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
