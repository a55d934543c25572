"""What an nsqd keeps on disk through restarts, kills, full disks, and when another nsqd takes over."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.server import Nsqd, NsqdOptions
from gnsq_like.server.broker.metadata import BadMetadata, Entry, decode
from gnsq_like.server.daemon_process import DaemonFailed
from tests.support.daemons import KINDS, Kind, Process, Running, running_nsqd, wait_for
from tests.support.raw import Client, Message, channel_stats, get, mpub_body, post, sized, stats, topic_stats

REAL = pytest.param("real", marks=pytest.mark.real_nsqd)
#: An nsqd that can be killed.
PROCESSES = ["process", REAL]

ANYWHERE: dict[str, Any] = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}


@contextmanager
def nsqd_at(path: Path, kind: Kind, **options: Any) -> Iterator[Running]:
    """An nsqd on a data path that outlasts it, which is stopped properly."""
    with running_nsqd(kind, data_path=str(path), **options) as running:
        yield running
        running.stop()


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def take(client: Client, count: int) -> list[Message]:
    """Receive and finish this many messages."""
    messages = []
    for _ in range(count):
        messages.append(client.message())
        client.send(b"FIN %b\n" % messages[-1].id)
    return messages


def consume(nsqd: Running, count: int, topic: str = "t", channel: str = "c") -> list[Message]:
    """Receive and finish this many messages over a new connection."""
    with Client(nsqd.tcp_address) as client:
        client.subscribe(topic, channel, rdy=min(count, 2000))
        messages = take(client, count)
        wait_for(lambda: channel_stats(nsqd.http_address, topic, channel)["in_flight_count"] == 0)
    return messages


def make_channel(nsqd: Running, topic: str = "t", channel: str = "c") -> None:
    assert post(nsqd.http_address, f"/topic/create?topic={topic}").status == 200
    assert post(nsqd.http_address, f"/channel/create?topic={topic}&channel={channel}").status == 200


def data_files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if "diskqueue" in each.name and "meta" not in each.name)


# -- restarts ------------------------------------------------------------------------------------------


def fill(nsqd: Running) -> None:
    """Put messages everywhere: at a topic, in a channel's memory and on its disk, in flight, deferred."""
    make_channel(nsqd)
    make_channel(nsqd, channel="paused")
    make_channel(nsqd, channel="gone%23ephemeral")
    assert post(nsqd.http_address, "/channel/pause?topic=t&channel=paused").status == 200
    assert post(nsqd.http_address, "/topic/create?topic=p").status == 200
    assert post(nsqd.http_address, "/topic/pause?topic=p").status == 200
    with Client(nsqd.tcp_address) as client:
        client.send(b"DPUB t 3600000\n", sized(b"deferred"))
        client.expect(b"OK")
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["deferred_count"] == 1)
        client.publish("backlog", *bodies(150))
        client.publish("p", b"at a paused topic")
        client.publish("e#ephemeral", b"x")
        client.publish("t", b"in flight", *bodies(100))
        client.subscribe("t", rdy=2)
        taken = [client.message(), client.message()]
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["in_flight_count"] == 2)
        client.send(b"RDY 0\nREQ %b 3600000\n" % taken[1].id)
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["deferred_count"] == 2)


def check_filled(nsqd: Running) -> None:
    """Check that all of them exist and can be delivered."""
    wait_for(lambda: channel_stats(nsqd.http_address, "t")["depth"] == 102)
    names = {topic["topic_name"]: topic for topic in stats(nsqd.http_address)["topics"]}
    assert {name: topic["paused"] for name, topic in names.items()} == {"backlog": False, "p": True, "t": False}
    channels = {channel["channel_name"]: channel["paused"] for channel in names["t"]["channels"]}
    assert channels == {"c": False, "paused": True}
    assert (names["backlog"]["depth"], names["p"]["depth"]) == (150, 1)
    found = consume(nsqd, 102)
    assert Counter(message.body for message in found) == Counter([b"in flight", b"deferred", *bodies(100)])
    # Two were delivered before: one was in flight, one deferred.
    assert Counter(message.attempts for message in found) == {1: 100, 2: 2}
    assert channel_stats(nsqd.http_address, "t", "paused")["depth"] == 102
    assert post(nsqd.http_address, "/channel/unpause?topic=t&channel=paused").status == 200
    assert len({message.id for message in consume(nsqd, 102, channel="paused")}) == 102
    assert Counter(message.body for message in consume(nsqd, 150, "backlog")) == Counter(bodies(150))
    assert get(nsqd.http_address, "/ping").body == b"OK"


#: Little memory and small files, so that both are used up.
SMALL: dict[str, Any] = {"mem_queue_size": 20, "max_bytes_per_file": 500}


@pytest.mark.parametrize("kind", [*KINDS, "process"])
def test_38_41_53_a_restart_keeps_everything(kind: Kind, tmp_path: Path) -> None:
    with nsqd_at(tmp_path, kind, **SMALL) as nsqd:
        fill(nsqd)
        nsqd.stop()
        assert all("#ephemeral" not in name for name in data_files(tmp_path))
        nsqd.start()
        check_filled(nsqd)
        nsqd.stop()
        nsqd.start()
        assert [topic["depth"] for topic in stats(nsqd.http_address)["topics"] if topic["topic_name"] == "p"] == [1]


@pytest.mark.real_nsqd
@pytest.mark.parametrize(("first", "second"), [("ours", "real"), ("real", "ours")])
def test_a_data_path_is_taken_over_by_the_other(first: Kind, second: Kind, tmp_path: Path) -> None:
    with nsqd_at(tmp_path, first, **SMALL) as nsqd:
        fill(nsqd)
    with nsqd_at(tmp_path, second, **SMALL) as nsqd:
        check_filled(nsqd)
        fill_more = bodies(100, first=1000)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *fill_more)
    with nsqd_at(tmp_path, first, **SMALL) as nsqd:
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["depth"] == 100)
        assert Counter(message.body for message in consume(nsqd, 100)) == Counter(fill_more)
    assert not list(tmp_path.glob("*.bad"))


def test_counters_start_anew_and_ids_do_not_collide(tmp_path: Path) -> None:
    with nsqd_at(tmp_path, "ours") as nsqd:
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(5))
        nsqd.stop()
        nsqd.start()
        assert channel_stats(nsqd.http_address, "t")["message_count"] == 0
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(5))
        assert len({message.id for message in consume(nsqd, 10)}) == 10


def test_nothing_is_left_behind_by_a_stopped_daemon(tmp_path: Path) -> None:
    with nsqd_at(tmp_path, "ours", mem_queue_size=0) as nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"x")
        nsqd.stop()
        for name in ("nsqd.dat.7.tmp", "t.diskqueue.meta.dat.123.tmp"):  # left by one that was killed
            (tmp_path / name).touch()
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for _ in range(3):
            nsqd.start()
            assert topic_stats(nsqd.http_address, "t")["depth"] == 1
            nsqd.stop()
        assert not list(tmp_path.glob("*.tmp"))
        if before:
            assert len(os.listdir("/proc/self/fd")) <= before


# -- memory and disk -----------------------------------------------------------------------------------


def test_messages_that_fit_in_memory_never_touch_the_disk(tmp_path: Path) -> None:
    with nsqd_at(tmp_path, "ours", mem_queue_size=100) as nsqd:
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(100))
            client.publish("without-a-channel", *bodies(100))
        assert channel_stats(nsqd.http_address, "t")["backend_depth"] == 0
        assert data_files(tmp_path) == []
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(7))
        assert channel_stats(nsqd.http_address, "t")["backend_depth"] == 7
        assert data_files(tmp_path) == ["t:c.diskqueue.000000.dat"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_memory_everything_waits_on_disk(kind: Kind, tmp_path: Path) -> None:
    with nsqd_at(tmp_path, kind, mem_queue_size=0) as nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(50))
        figures = topic_stats(nsqd.http_address, "t")
        assert (figures["depth"], figures["backend_depth"]) == (50, 50)
        assert [message.body for message in consume(nsqd, 50)] == bodies(50)
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(5))
        figures = wait_for(lambda: (f := channel_stats(nsqd.http_address, "t"))["depth"] == 5 and f)
        assert figures["backend_depth"] == 5


def test_the_order_is_kept_through_memory_and_disk(tmp_path: Path) -> None:
    with nsqd_at(tmp_path, "ours", mem_queue_size=10, max_bytes_per_file=20_000) as nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(6000))  # more than moves to a channel at once
        with Client(nsqd.tcp_address) as client, Client(nsqd.tcp_address) as publisher:
            client.subscribe("t", rdy=50)
            found = take(client, 3000)
            publisher.publish("t", *bodies(500, first=6000))
            found += take(client, 3500)
        assert [message.body for message in found] == bodies(6500)


@pytest.mark.parametrize("kind", KINDS)
def test_53_a_deferral_is_lost_through_the_topics_disk_queue(kind: Kind, tmp_path: Path) -> None:
    with nsqd_at(tmp_path, kind, mem_queue_size=0) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"DPUB t 3600000\n", sized(b"x"))
        client.expect(b"OK")
        client.subscribe("t", rdy=1)
        assert client.message().body == b"x"


@pytest.mark.parametrize("kind", KINDS)
def test_54_an_ephemeral_queue_drops_what_overflows(kind: Kind, tmp_path: Path) -> None:
    with nsqd_at(tmp_path, kind, mem_queue_size=2) as nsqd, Client(nsqd.tcp_address) as client:
        client.publish("t#ephemeral", *bodies(10))
        figures = topic_stats(nsqd.http_address, "t#ephemeral")
        assert (figures["depth"], figures["message_count"]) == (2, 10)
        assert data_files(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_emptying_and_deleting_remove_the_files(kind: Kind, tmp_path: Path) -> None:
    with nsqd_at(tmp_path, kind, mem_queue_size=0) as nsqd:
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(20))
            client.publish("u", *bodies(20))
            wait_for(lambda: channel_stats(nsqd.http_address, "t")["depth"] == 20)
            assert {name.partition(".")[0] for name in data_files(tmp_path)} >= {"t:c", "u"}
            post(nsqd.http_address, "/channel/empty?topic=t&channel=c")
            post(nsqd.http_address, "/topic/empty?topic=u")
            assert not {name.partition(".")[0] for name in data_files(tmp_path)} & {"t:c", "u"}
            client.publish("t", *bodies(20))
            wait_for(lambda: channel_stats(nsqd.http_address, "t")["depth"] == 20)
        post(nsqd.http_address, "/topic/delete?topic=t")
        post(nsqd.http_address, "/topic/delete?topic=u")
        wait_for(lambda: data_files(tmp_path) == [])
        assert topic_stats(nsqd.http_address, "t") is None
        post(nsqd.http_address, "/topic/create?topic=t")
        assert topic_stats(nsqd.http_address, "t")["depth"] == 0


def memory_of(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_memory_is_bounded_however_much_waits(tmp_path: Path) -> None:
    with nsqd_at(tmp_path, "process", mem_queue_size=1000) as nsqd:
        assert isinstance(nsqd, Process)
        assert nsqd.process is not None
        make_channel(nsqd, "waits", "c")
        before = memory_of(nsqd.process.pid)
        command = b"MPUB waits\n" + mpub_body(*[b"x" * 200] * 1000)
        with Client(nsqd.tcp_address) as client:
            for _ in range(100):
                client.send(command)
                client.expect(b"OK")
        assert channel_stats(nsqd.http_address, "waits")["backend_depth"] == 99_000
        assert memory_of(nsqd.process.pid) - before < 15_000_000  # of 20 MB of bodies alone


# -- kill -9 -------------------------------------------------------------------------------------------


def test_a_kill_in_the_middle_of_overflow_loses_what_was_in_memory_only(tmp_path: Path) -> None:
    with running_nsqd("process", data_path=str(tmp_path), mem_queue_size=100, max_bytes_per_file=20_000) as nsqd:
        make_channel(nsqd)
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
        wait_for(lambda: channel_stats(nsqd.http_address, "t")["in_flight_count"] == 0)
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


# -- nsqd.dat ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nsqd_dat_follows_what_there_is(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"

    def content(topics: Any) -> bytes:
        return json.dumps({"topics": topics, "version": "1.3.0"}, separators=(",", ":")).encode()

    with nsqd_at(tmp_path, kind) as nsqd:
        wait_for(path.exists)
        assert path.read_bytes() == b'{"topics":null,"version":"1.3.0"}'
        assert path.stat().st_mode & 0o777 == 0o600
        post(nsqd.http_address, "/topic/create?topic=t")
        wait_for(lambda: path.read_bytes() == content([{"name": "t", "paused": False, "channels": None}]))
        post(nsqd.http_address, "/channel/create?topic=t&channel=c")
        post(nsqd.http_address, "/channel/create?topic=t&channel=e%23ephemeral")
        channel = {"name": "c", "paused": False}
        wait_for(lambda: path.read_bytes() == content([{"name": "t", "paused": False, "channels": [channel]}]))
        post(nsqd.http_address, "/channel/pause?topic=t&channel=c")
        channel["paused"] = True
        assert path.read_bytes() == content([{"name": "t", "paused": False, "channels": [channel]}])
        post(nsqd.http_address, "/topic/delete?topic=t")
        if kind == "ours":  # the real one may write before the topic is gone, and then not again until it ends
            wait_for(lambda: path.read_bytes() == content(None))
    assert path.read_bytes() == content(None)


def test_what_nsqd_dat_may_be() -> None:
    assert decode(b'{"version":"1.3.0","topics":null}') == decode(b"{}") == []
    found = decode(
        b'{"topics":[{"name":"t"},{"name":"not valid"},{"name":"u","paused":true,"channels":[{"name":"c"}]}]}'
    )
    assert found == [Entry("t", False), Entry("u", True, (Entry("c", False),))]
    for bad in (b"", b"{", b"[]", b'{"topics":[1]}', b'{"topics":[{"name":1}]}', b'{"topics":{}}', b"\xff"):
        with pytest.raises(BadMetadata):
            decode(bad)


@pytest.mark.parametrize("kind", ["process", REAL])
def test_a_broken_nsqd_dat_stops_the_start_and_is_left_as_it_is(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(b"{nonsense")
    with pytest.raises(DaemonFailed, match=f"failed to parse metadata in {tmp_path}/nsqd.dat - "):
        running_nsqd(kind, data_path=str(tmp_path)).__enter__()
    assert (tmp_path / "nsqd.dat").read_bytes() == b"{nonsense"


# -- the lock ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["process", REAL])
@pytest.mark.parametrize("first", [*KINDS])
def test_two_nsqds_cannot_share_a_data_path(first: Kind, second: Kind, tmp_path: Path) -> None:
    refusal = (
        rf"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily unavailable "
        r"\(possibly in use by another instance of nsqd\)"
    )
    with nsqd_at(tmp_path, first) as nsqd:
        with pytest.raises(DaemonFailed, match=refusal):
            running_nsqd(second, data_path=str(tmp_path)).__enter__()
        with pytest.raises(OSError, match=refusal):
            Nsqd(**ANYWHERE, data_path=str(tmp_path)).start()
        assert get(nsqd.http_address, "/ping").body == b"OK"
    with nsqd_at(tmp_path, second):
        pass


def test_a_start_that_fails_leaves_no_lock_and_no_harm(tmp_path: Path) -> None:
    with nsqd_at(tmp_path, "ours") as nsqd:
        make_channel(nsqd)
        address = nsqd.http_address
        other = tmp_path / "other"
        other.mkdir()
        (other / "nsqd.dat").write_text('{"topics":[{"name":"t"}]}')
        with pytest.raises(OSError, match="Address already in use"):
            Nsqd(tcp_address="127.0.0.1:0", http_address=address, data_path=str(other)).start()
        with nsqd_at(other, "ours") as second:
            assert topic_stats(second.http_address, "t") is not None
    with pytest.raises(OSError, match=f"failed to lock data-path: open {tmp_path}/none: no such file or directory"):
        Nsqd(**ANYWHERE, data_path=f"{tmp_path}/none").start()


# -- disks that fail -----------------------------------------------------------------------------------

full_disk = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


@full_disk
@pytest.mark.parametrize("kind", KINDS)
def test_58_on_a_full_disk_publishes_fail_and_ping_says_so_until_the_next_good_write(
    kind: Kind, tmp_path: Path
) -> None:
    path = tmp_path / "t.diskqueue.000000.dat"
    problem = f"write {path}: no space left on device".encode()
    with nsqd_at(tmp_path, kind, mem_queue_size=0) as nsqd:
        path.symlink_to("/dev/full")
        for command, line, body in (
            (b"PUB", b"PUB t\n", sized(b"x")),
            (b"DPUB", b"DPUB t 0\n", sized(b"x")),
            (b"MPUB", b"MPUB t\n", mpub_body(b"x", b"y")),
        ):
            with Client(nsqd.tcp_address) as client:
                client.send(line, body)
                client.expect_fatal(b"E_%b_FAILED %b failed %b" % (command, command, problem))
        answer = post(nsqd.http_address, "/pub?topic=t", b"x")
        assert (answer.status, answer.json()) == (503, {"message": "EXITING"})
        answer = get(nsqd.http_address, "/ping")
        assert (answer.status, answer.body) == (500, b"NOK - " + problem)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert stats(nsqd.http_address)["health"] == f"NOK - {problem.decode()}"
        assert topic_stats(nsqd.http_address, "t")["message_count"] == 0
        path.unlink()
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(3))
        assert get(nsqd.http_address, "/ping").body == b"OK"
        assert [message.body for message in consume(nsqd, 3)] == bodies(3)


@full_disk
def test_a_publish_is_refused_when_its_channel_cannot_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "t:c.diskqueue.000000.dat"
    with nsqd_at(tmp_path, "ours", mem_queue_size=2) as nsqd:
        make_channel(nsqd)
        path.symlink_to("/dev/full")
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(2))
            client.send(b"MPUB t\n", mpub_body(*bodies(2, first=100)))
            client.expect_fatal(b"E_MPUB_FAILED MPUB failed write %b: no space left on device" % str(path).encode())
        assert channel_stats(nsqd.http_address, "t")["depth"] == 2
        path.unlink()
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(2, first=2))
        assert [message.body for message in consume(nsqd, 4)] == bodies(4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_waits_in_a_topic_goes_to_all_its_channels_after_a_restart(kind: Kind, tmp_path: Path) -> None:
    with nsqd_at(tmp_path, kind) as nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(3))
        nsqd.stop()
        channels = ",".join(f'{{"name":"{name}","paused":false}}' for name in "abc")
        (tmp_path / "nsqd.dat").write_text(f'{{"topics":[{{"name":"t","paused":false,"channels":[{channels}]}}]}}')
        nsqd.start()
        wait_for(lambda: [channel_stats(nsqd.http_address, "t", name)["depth"] for name in "abc"] == [3, 3, 3])


def test_a_metadata_file_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    with nsqd_at(tmp_path, "ours", sync_timeout=0.05) as nsqd:
        wait_for(path.exists)
        path.unlink()
        path.mkdir()
        make_channel(nsqd)
        wait_for(lambda: not list(tmp_path.glob("*.tmp")))
        path.rmdir()
        wait_for(lambda: path.is_file() and b'"t"' in path.read_bytes())
        nsqd.kill()
    assert b'"c"' in path.read_bytes()


@full_disk
def test_what_was_confirmed_waits_in_memory_for_a_disk_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "t:second.diskqueue.000000.dat"
    with nsqd_at(tmp_path, "ours", mem_queue_size=0, sync_timeout=0.05) as nsqd:
        make_channel(nsqd, channel="first")
        make_channel(nsqd, channel="second")
        path.symlink_to("/dev/full")
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"kept")  # one channel has it, so it is not refused
            client.send(b"PUB t\n", sized(b"refused"))
            client.expect_fatal(b"E_PUB_FAILED PUB failed write %b: no space left on device" % str(path).encode())
        figures = channel_stats(nsqd.http_address, "t", "second")
        assert (figures["depth"], figures["backend_depth"]) == (1, 0)
        path.unlink()
        wait_for(lambda: channel_stats(nsqd.http_address, "t", "second")["backend_depth"] == 1)
        assert get(nsqd.http_address, "/ping").body == b"OK"
        assert [message.body for message in consume(nsqd, 1, channel="second")] == [b"kept"]
        assert [message.body for message in consume(nsqd, 1, channel="first")] == [b"kept"]


# -- options -------------------------------------------------------------------------------------------


def test_an_nsqd_in_this_process_writes_nothing_unless_told_to(tmp_path: Path) -> None:
    script = f"""
import os
os.chdir({str(tmp_path)!r})
from gnsq_like.server import Nsqd
nsqd = Nsqd(tcp_address="127.0.0.1:0", http_address="", mem_queue_size=0)
nsqd.start()
nsqd.broker.publish("t", [b"x"] * 100, 0.0, 0)
nsqd.stop()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("flags", "files"), [([], ["nsqd.dat"]), (["--data-path="], [])])
def test_the_command_keeps_its_data_in_the_current_directory_as_nsqs_does(
    flags: list[str], files: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "gnsq_like", "nsqd", "--tcp-address=127.0.0.1:0", "--http-address=", *flags]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    with process:
        assert process.stderr is not None
        assert b"listening on" in process.stderr.readline()
        process.terminate()
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == files


@pytest.mark.parametrize("name", ["mem_queue_size", "max_bytes_per_file", "sync_every", "sync_timeout"])
def test_options_have_a_least_value(name: str) -> None:
    options: dict[str, Any] = {name: -1}
    with pytest.raises(InvalidOption, match=name):
        NsqdOptions(**options)
