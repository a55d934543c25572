"""What an nsqd loses, and what it does not, when it is killed (kill -9)."""

import os
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.support.daemons import Kind, Running, running_nsqd, wait_for
from tests.support.data_paths import PROCESSES, bodies, consume, data_files, make_channel, nsqd_at
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


def killed_between_two_steps(nsqd: Running, path: Path) -> None:
    """Kill an nsqd when its consumer has finished all messages, and before it removed the files that it had read."""
    kept = path / "kept"
    kept.mkdir()
    make_channel(nsqd)
    wait_until_noted(path)
    with Client(nsqd.tcp_address) as client:
        client.publish("t", *bodies(100))
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["backend_depth"] == 100)
        client.publish("t", *bodies(100))
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["backend_depth"] == 200)
    for name in data_files(path):
        if name.startswith("t:c."):  # in NSQ's nsqd, all went through the topic's files, which it is removing
            os.link(path / name, kept / name)
    consume(nsqd, 200)
    meta = path / "t:c.diskqueue.meta.dat"
    # All was read, and the disk knows it.
    wait_for(lambda: meta.exists() and (lines := meta.read_text().split())[0] == "0" and lines[1] == lines[2])
    nsqd.kill()
    restored = [file for file in kept.iterdir() if not (path / file.name).exists()]
    assert restored
    for file in restored:
        os.link(file, path / file.name)


#: Small files, and the metadata written soon.
STEPS: dict[str, Any] = {"mem_queue_size": 0, "max_bytes_per_file": 1000, "sync_timeout": 0.05}


@pytest.mark.parametrize("kind", PROCESSES)
@pytest.mark.parametrize("how", ["topic/delete?topic=t", "channel/delete?topic=t&channel=c"])
def test_finished_messages_do_not_return_with_a_topic_or_channel_created_again(
    kind: Kind, how: str, tmp_path: Path
) -> None:
    with running_nsqd(kind, data_path=str(tmp_path), **STEPS) as nsqd:
        killed_between_two_steps(nsqd, tmp_path)
        nsqd.start()
        if kind == "process":  # NSQ's leaves them
            assert len(data_files(tmp_path)) <= 1
        assert post(nsqd.http_address, f"/{how}").status == 200
        if kind == "process":
            assert data_files(tmp_path) == []
            wait_for(lambda: b'"c"' not in (tmp_path / "nsqd.dat").read_bytes())
        nsqd.kill()
        nsqd.start()
        make_channel(nsqd)
        assert channel_stats(nsqd.http_address, "t")["depth"] == 0


@pytest.mark.parametrize("kind", PROCESSES)
def test_finished_messages_do_not_return_to_an_emptied_channel(kind: Kind, tmp_path: Path) -> None:
    with running_nsqd(kind, data_path=str(tmp_path), **STEPS) as nsqd:
        killed_between_two_steps(nsqd, tmp_path)
        nsqd.start()
        assert post(nsqd.http_address, "/channel/empty?topic=t&channel=c").status == 200
        nsqd.kill()
        nsqd.start()
        assert channel_stats(nsqd.http_address, "t")["depth"] == 0


@pytest.mark.parametrize("kind", PROCESSES)
def test_a_new_channel_takes_no_files_that_no_metadata_names(kind: Kind, tmp_path: Path) -> None:
    with running_nsqd(kind, data_path=str(tmp_path), **STEPS) as nsqd:
        killed_between_two_steps(nsqd, tmp_path)
        for name in ("nsqd.dat", "t:c.diskqueue.meta.dat"):
            (tmp_path / name).unlink()
        nsqd.start()
        make_channel(nsqd)
        assert channel_stats(nsqd.http_address, "t")["depth"] == 0
        wait_until_noted(tmp_path)
        nsqd.kill()
        nsqd.start()
        assert channel_stats(nsqd.http_address, "t")["depth"] == 0


@pytest.mark.parametrize("kind", PROCESSES)
def test_a_kill_loses_what_was_in_flight(kind: Kind, tmp_path: Path) -> None:
    with running_nsqd(kind, data_path=str(tmp_path), mem_queue_size=0, sync_timeout=0.05) as nsqd:
        make_channel(nsqd)
        wait_until_noted(tmp_path)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(300))
            wait_for(lambda: channel_stats(nsqd.http_address, "t")["backend_depth"] == 300)
            client.subscribe("t", rdy=100)
            for _ in range(100):
                client.message()
            meta = tmp_path / "t:c.diskqueue.meta.dat"
            wait_for(lambda: meta.exists() and meta.read_text().startswith("200\n"))
            nsqd.kill()
        nsqd.start()
        assert channel_stats(nsqd.http_address, "t")["depth"] == 200


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
            wait_for(lambda: meta.exists() and meta.read_text().startswith("3\n0,0\n0,"))
            client.subscribe("t", rdy=1)
            client.message()
            wait_for(lambda: meta.read_text().startswith("2\n0,31\n0,"))
