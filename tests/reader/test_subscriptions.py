"""The table of a Reader's connections; what happens with topics that go is in test_topics.py."""

from __future__ import annotations

from gnsq_like import Reader
from tests.support.daemons import running_nsqd, wait_for
from tests.support.peer import scripted_nsqd
from tests.support.reading import ignore, reading, serve


def test_a_connection_leaves_the_table_with_its_socket_and_its_return_is_a_reconnect() -> None:
    with scripted_nsqd() as nsqd, reading([nsqd], max_redial_delay=0.01) as reader:
        peer = serve(nsqd)
        assert list(reader.stats()["connections"]) == [nsqd.address]
        peer.close()
        serve(nsqd)
        wait_for(lambda: reader.stats()["reconnects"] == 1)
        assert list(reader.stats()["connections"]) == [nsqd.address]


def test_each_topic_of_an_nsqd_has_a_connection_of_its_own() -> None:
    with running_nsqd() as nsqd, Reader(["a", "b"], "c", ignore, nsqd_tcp_addresses=nsqd.tcp_address) as reader:
        wait_for(lambda: len(reader.stats()["connections"]) == 2)
        assert {name: each["connections"] for name, each in reader.stats()["topics"].items()} == {"a": 1, "b": 1}
