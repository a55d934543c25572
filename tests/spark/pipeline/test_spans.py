"""Spans of time: they hold every message, and have one length."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from gnsq_like.spark.pipeline.report import spans_of
from tests.support.pipeline_tables import batch


def test_a_rate_is_over_no_less_than_a_batch() -> None:
    assert [span.length for span in spans_of(batch(0))] == [1]
    [row] = batch(0)
    assert [span.length for span in spans_of([replace(row, written_at=row.seen_at + timedelta(seconds=48))])] == [60]
    assert {span.length for span in spans_of([*batch(0), *batch(1), *batch(2)])} == {10}


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 1000)), min_size=1, max_size=20))
def test_spans_hold_everything_without_gaps(batches: list[tuple[int, int]]) -> None:
    rows = [batch(number, messages)[0] for number, messages in batches]
    spans = spans_of(rows)
    assert sum(span.messages for span in spans) == sum(messages for _, messages in batches)
    steps = {later.start - earlier.start for earlier, later in zip(spans, spans[1:], strict=False)}
    assert steps <= {timedelta(seconds=spans[0].length)}
    assert len(spans) <= 120 or spans[0].length == 86400
    assert spans[0].start <= min(row.seen_at for row in rows)
