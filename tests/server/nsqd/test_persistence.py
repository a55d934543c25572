"""What an nsqd keeps on disk through restarts, and when another nsqd takes over."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.errors import InvalidOption
from gnsq_like.server import Nsqd, NsqdOptions
from gnsq_like.server.daemon_process import DaemonFailed
from tests.support.daemons import KINDS, Kind, Process, Running, running_nsqd, wait_for
from tests.support.data_paths import REAL, bodies, consume, data_files, make_channel, nsqd_at, take
from tests.support.raw import Client, channel_stats, get, mpub_body, post, sized, stats, topic_stats

ANYWHERE: dict[str, Any] = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}


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
            # Other tests' threads may have some open for a moment.
            wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before)


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


@pytest.mark.parametrize("name", ["nsqd.dat", "t.diskqueue.000003.dat", "t:c.diskqueue.meta.dat"])
def test_files_that_others_may_have_put_there_are_refused(name: str, tmp_path: Path) -> None:
    data_path = tmp_path / "shared"
    data_path.mkdir()
    data_path.chmod(0o1777)
    (tmp_path / "private").write_bytes(b"private")
    (data_path / name).symlink_to(tmp_path / "private")
    with pytest.raises(OSError, match=f"failed to open data-path: {data_path}/{name}: it is not a regular file"):
        Nsqd(**ANYWHERE, data_path=str(data_path)).start()
    (data_path / name).unlink()
    with nsqd_at(data_path, "ours"):  # the lock is free, and in a shared directory it works
        pass
    assert (tmp_path / "private").read_bytes() == b"private"


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_nothing_is_written_into_what_others_put_there_later(kind: str, tmp_path: Path) -> None:
    data_path = tmp_path / "shared"
    data_path.mkdir()
    data_path.chmod(0o1777)
    (tmp_path / "private").write_bytes(b"private")
    with nsqd_at(data_path, "ours", mem_queue_size=0) as nsqd:
        make_channel(nsqd)
        planted = data_path / "t:c.diskqueue.000000.dat"
        planted.symlink_to(tmp_path / "private") if kind == "link" else os.link(tmp_path / "private", planted)
        assert post(nsqd.http_address, "/pub?topic=t", b"one").status == 503
        assert (tmp_path / "private").read_bytes() == b"private"
        planted.unlink()
        assert post(nsqd.http_address, "/pub?topic=t", b"two").status == 200
        assert [message.body for message in consume(nsqd, 1)] == [b"two"]


# -- options -------------------------------------------------------------------------------------------


def test_an_nsqd_in_this_process_writes_nothing_unless_told_to(tmp_path: Path) -> None:
    script = f"""
import os
os.chdir({str(tmp_path)!r})
from gnsq_like.server import Nsqd
nsqd = Nsqd(tcp_address="127.0.0.1:0", http_address="", mem_queue_size=0)
nsqd.start()
nsqd.broker.topic("t").publish([b"x"] * 100, 0.0, 0.0, 0)
nsqd.stop()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
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
