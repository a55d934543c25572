"""The statistics of a started Reader's parts."""

from __future__ import annotations

from gnsq_like import Reader
from gnsq_like.reader.running import NOT_STARTED
from tests.support.daemons import running_nsqd, wait_for
from tests.support.reading import ignore


def test_a_reader_has_the_same_statistics_before_its_start_and_after():
    with running_nsqd() as nsqd:
        reader = Reader("t", "c", ignore, nsqd_tcp_addresses=nsqd.tcp_address)
        before = reader.stats()
        assert before.items() >= NOT_STARTED.items()
        with reader:
            wait_for(lambda: reader.stats()["connections"])
            started = reader.stats()
    assert list(started) == list(before) == list(reader.stats())
    assert started["known"] == [nsqd.tcp_address]
    assert started["surveyed"] is True
