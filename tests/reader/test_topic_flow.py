"""Counts by topic, and in all."""

from __future__ import annotations

from gnsq_like.reader.topic_flow import MessageCounts, ReaderCounts


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
