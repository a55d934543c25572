"""A peer that is dead, and a hub that was late."""

from __future__ import annotations

import socket as plain
import threading
import time

from gnsq_like.connection.connection import Connection
from gnsq_like.errors import NotSent
from gnsq_like.options import ConnectionOptions
from gnsq_like.wire import commands
from tests.simulation import Cluster, simulated
from tests.support.connected import PeerInAThread, Sink, Watcher, confirmed, connect
from tests.support.daemons import wait_for
from tests.support.peer import HEARTBEAT, PATIENCE, ScriptedNsqd


@simulated()
def test_a_silent_peer_is_dead_after_two_heartbeat_intervals(cluster: Cluster) -> None:
    ends: list[tuple[float, str]] = []

    def note(_: str, error: Exception | None) -> None:
        ends.append((cluster.now, str(error)))

    reader = cluster.reader("t", "c", lambda _: None, heartbeat_interval=1, on_disconnect=note)
    cluster.wait(lambda: reader.stats()["connections"])
    parted = cluster.now
    cluster.world.network.part_both_ways(cluster.world.main, cluster.nsqds[0].process)
    cluster.wait(lambda: ends)
    cluster.world.network.join_both_ways(cluster.world.main, cluster.nsqds[0].process)
    assert 2.0 <= ends[0][0] - parted <= 4.0
    assert "nothing received" in ends[0][1]


def test_a_peer_that_reads_nothing_is_dead_after_write_timeout(nsqd: ScriptedNsqd, watcher: Watcher) -> None:
    connection, _ = connect(nsqd, watcher, write_timeout=0.1)
    reply = connection.publish(commands.mpub("t", [bytes(1_000_000)] * 20))
    assert watcher.ended.wait(PATIENCE)
    assert "accepted no bytes" in str(watcher.ends[0])
    assert isinstance(reply.error, NotSent)


def test_a_hub_that_was_blocked_while_the_peer_read_does_not_count_against_it() -> None:
    command = commands.mpub("t", [bytes(1_000_000)] * 20)
    sink = Sink(answer_at=len(command))
    with PeerInAThread(sink) as nsqd:
        connection = Connection(nsqd.address, ConnectionOptions(write_timeout=1.0))
        connection.connect()
        reply = connection.publish(command)
        write_buffer = connection._write_buffer
        assert write_buffer is not None
        assert write_buffer.stalled_since is not None
        nsqd.go.set()
        sink.block_until(write_buffer.sent_count)
        time.sleep(1.5)  # blocks the hub, which is what this is about, past the next look at the peer
        confirmed(reply)
        assert connection.alive
        connection.close()


def test_a_hub_that_was_blocked_does_not_count_against_the_peer() -> None:
    """The peer lives in a thread of its own and sends heartbeats; the hub stands still for 2.5 s."""
    stop = threading.Event()
    beats: list[float] = []

    def send_heartbeats(peer: plain.socket) -> None:
        while not stop.wait(0.25):
            peer.sendall(HEARTBEAT)
            beats.append(time.monotonic())

    with PeerInAThread(send_heartbeats) as nsqd:
        connection = Connection(nsqd.address, ConnectionOptions(heartbeat_interval=1))
        connection.connect()
        nsqd.go.set()
        time.sleep(2.5)  # blocks the hub, which is what this is about
        # The connection looks at its peer once a second: it has, while these come.
        seen = len(beats)
        wait_for(lambda: len(beats) >= seen + 6 or not connection.alive)
        assert connection.alive
        assert connection.last_received_at > beats[seen]
        connection.close()
        stop.set()


def test_what_lies_in_the_socket_unread_is_a_sign_of_life(nsqd: ScriptedNsqd, watcher: Watcher) -> None:
    connection, peer = connect(nsqd, watcher, heartbeat_interval=30)
    peer.send(HEARTBEAT)  # the hub does not run until this connection has been looked at
    connection.last_received_at = time.monotonic() - 3600
    connection._look()
    assert connection.alive
    connection.last_received_at = time.monotonic()
    wait_for(lambda: not connection._transport.has_input())
    connection.last_received_at = time.monotonic() - 3600
    connection._look()
    assert watcher.ended.wait(PATIENCE)
    assert "nothing received for 360" in str(watcher.ends[0])
