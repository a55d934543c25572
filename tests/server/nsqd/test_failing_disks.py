"""Disks that fail: what is refused, what waits, and what is kept."""

import resource
import signal
from pathlib import Path

import pytest

from tests.support.daemons import KINDS, Kind, Process, running_nsqd, wait_for
from tests.support.data_paths import bodies, consume, make_channel, nsqd_at
from tests.support.files import full_disk
from tests.support.raw import Client, channel_stats, get, mpub_body, post, sized, stats, topic_stats


@full_disk
@pytest.mark.parametrize("kind", KINDS)
def test_58_on_a_full_disk_publishes_fail_and_ping_says_so_until_a_good_write(kind: Kind, tmp_path: Path) -> None:
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


def test_sigterm_on_a_full_disk_keeps_what_fits_and_says_so(tmp_path: Path) -> None:
    with running_nsqd("process", data_path=str(tmp_path)) as nsqd:
        assert isinstance(nsqd, Process)
        process = nsqd.process
        assert process is not None
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *[b"x" * 1000] * 100)
        # Room for all small files, and for some of the messages.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (40_000, 40_000))
        process.signal(signal.SIGTERM)
        wait_for(lambda: process.status is not None)
        assert process.status == 1
        assert "messages were in memory and could not be written to disk" in process.log
    with nsqd_at(tmp_path, "ours") as nsqd:
        assert len(consume(nsqd, 38)) == 38
        assert channel_stats(nsqd.http_address, "t")["depth"] == 0
