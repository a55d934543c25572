"""Counts by topic, and in all."""

from __future__ import annotations

from gnsq_like.options import ReaderOptions
from gnsq_like.policy.rdy import Mode
from gnsq_like.reader.topic_flow import MessageCounts, ReaderCounts, TopicFlow


def test_the_total_keeps_the_counts_of_topics_that_are_gone() -> None:
    counts = ReaderCounts()
    counts.of("a").received = 3
    counts.of("b").received = 4
    counts.of("b").lost = 1
    assert counts.total == MessageCounts(received=7, lost=1)
    counts.drop("b")
    assert list(counts.by_topic) == ["a"]
    assert counts.total == MessageCounts(received=7, lost=1)
    assert counts.of("b") == MessageCounts()


def test_topics_back_off_by_themselves_as_the_options_say() -> None:
    options = ReaderOptions(backoff_strategy=lambda level: 7.0 * level)
    one, other = (TopicFlow(name, options, MessageCounts()) for name in "ab")
    assert one.backoff.failure(one.backoff.epoch, 0.0)
    assert (one.backoff.mode, one.backoff.until) == (Mode.BLOCKED, 7.0)
    assert other.backoff.mode is Mode.FLOWING
