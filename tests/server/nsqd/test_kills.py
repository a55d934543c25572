"""What an nsqd loses, and what it does not, when it is killed (kill -9)."""

from pathlib import Path

import gevent
import pytest

from tests.support.daemons import Kind, running_nsqd, wait_for
from tests.support.data_paths import PROCESSES, bodies, consume, make_channel, nsqd_at
from tests.support.raw import Client, channel_stats, post, topic_stats


def wait_until_noted(path: Path, channel: str = "c") -> None:
    """Wait until nsqd.dat names the channel; it is written a little later than the channel is created."""
    metadata = path / "nsqd.dat"
    wait_for(lambda: metadata.exists() and b'"name":"%b"' % channel.encode() in metadata.read_bytes())


def test_a_kill_in_the_middle_of_overflow_loses_what_was_in_memory_only(tmp_path: Path) -> None:
    with running_nsqd("process", data_path=str(tmp_path), mem_queue_size=100, max_bytes_per_file=20_000) as nsqd:
        make_channel(nsqd)
        wait_until_noted(tmp_path)
        confirmed = 0

        def publish() -> None:
            nonlocal confirmed
            with Client(nsqd.tcp_address) as client:
                while True:
                    batch = bodies(50, first=confirmed)
                    client.publish("t", *batch)
                    confirmed += len(batch)

        publisher = gevent.spawn(publish)
        wait_for(lambda: confirmed > 5000)
        nsqd.kill()
        with pytest.raises((AssertionError, OSError)):
            publisher.get()
        nsqd.start()
        depth = channel_stats(nsqd.http_address, "t")["depth"]
        assert confirmed - 100 <= depth <= confirmed - 50  # the last ones may be there without having been confirmed
        # The first hundred were in memory.
        assert [message.body for message in consume(nsqd, depth)] == bodies(depth, first=100)


def test_a_kill_without_memory_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    with running_nsqd("process", data_path=str(tmp_path), mem_queue_size=0) as nsqd:
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(30))
            client.publish("u", b"x")
            nsqd.kill()  # long before anything was synced
        nsqd.start()
        assert [message.body for message in consume(nsqd, 30)] == bodies(30)
        assert [message.body for message in consume(nsqd, 1, "u")] == [b"x"]
        wait_until_noted(tmp_path)
        nsqd.kill()
        nsqd.start()
        assert channel_stats(nsqd.http_address, "t")["depth"] <= 30  # what was read may come again


@pytest.mark.parametrize("kind", PROCESSES)
def test_38_a_pause_survives_a_kill(kind: Kind, tmp_path: Path) -> None:
    with running_nsqd(kind, data_path=str(tmp_path)) as nsqd:
        make_channel(nsqd)
        post(nsqd.http_address, "/channel/pause?topic=t&channel=c")
        post(nsqd.http_address, "/topic/pause?topic=t")
        nsqd.kill()
        nsqd.start()
        assert topic_stats(nsqd.http_address, "t")["paused"]
        assert channel_stats(nsqd.http_address, "t")["paused"]


def test_the_meta_file_follows_within_the_sync_timeout(tmp_path: Path) -> None:
    with nsqd_at(tmp_path, "ours", mem_queue_size=0, sync_timeout=0.05) as nsqd:
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(3))
            meta = tmp_path / "t:c.diskqueue.meta.dat"
            wait_for(lambda: meta.read_text().startswith("3\n0,0\n0,"))
            client.subscribe("t", rdy=1)
            client.message()
            wait_for(lambda: meta.read_text().startswith("2\n0,31\n0,"))
