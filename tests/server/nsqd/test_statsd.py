"""The bytes that ours and the real one push to a statsd (docs/internals 3.6)."""

import re
from contextlib import closing

from gevent import socket
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.nsqd.statsd import packets
from tests.support.daemons import Kind, running_nsqd
from tests.support.raw import Client, post

TIMEOUT = 30.0
COUNTED = "topic.t.message_count"


def pushed(sock: socket.socket, last: str) -> list[bytes]:
    """Packets, up to the one with the line of that name."""
    found: list[bytes] = []
    while not found or f".{last}:".encode() not in found[-1]:
        found.append(sock.recv(65536))
    return found


def values(packets: list[bytes], prefix: str) -> dict[str, str]:
    """The lines of a push, by their names without the prefix that all must have."""
    lines = b"".join(packets).decode().splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return dict(line.removeprefix(prefix).rsplit(":", 1) for line in lines)


def test_a_push_has_counts_since_the_last_one_and_levels(kind: Kind) -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(TIMEOUT)
        with running_nsqd(
            kind,
            statsd_address=f"127.0.0.1:{sock.getsockname()[1]}",
            statsd_interval=1.1,
            statsd_udp_packet_size=200,
            statsd_exclude_ephemeral=True,
            e2e_processing_latency_percentiles=(0.99,),
        ) as nsqd:
            for channel in ("c", "e%23ephemeral"):
                post(nsqd.http_address, "/topic/create?topic=t")
                post(nsqd.http_address, f"/channel/create?topic=t&channel={channel}")
            post(nsqd.http_address, "/topic/create?topic=u%23ephemeral")
            with Client(nsqd.tcp_address) as client:
                client.subscribe("t", rdy=2)
                post(nsqd.http_address, "/mpub?topic=t", b"one\ntwo\nthree")
                first = client.message()
                client.send(b"FIN %b\n" % first.id)
                client.message()
                client.message()
                prefix = f"nsq.{nsqd.http_address.replace('.', '_').replace(':', '_')}."
                # A busy machine may be slower than the first push.
                sent = pushed(sock, "mem.gc_runs")
                while values(sent, prefix).get(COUNTED) != "3|c":
                    sent = pushed(sock, "mem.gc_runs")
                again = pushed(sock, "mem.gc_runs")
    assert max(len(packet) for packet in sent) <= 200
    counted, found = values(sent, prefix), values(again, prefix)
    assert found.keys() == counted.keys()
    for name, value in counted.items():
        if name.startswith("topic.") and value.endswith("|c"):
            assert found[name] == "0|c"
            found[name] = value
    latencies = [found.pop(f"topic.t.{below}e2e_processing_latency_99") for below in ("", "channel.c.")]
    assert all(re.fullmatch(r"[1-9][0-9]*\|g", latency) for latency in latencies)
    memory = {name for name in found if name.startswith("mem.")}
    assert {name: found[name] for name in found.keys() - memory} == {
        "topic.t.message_count": "3|c",
        "topic.t.message_bytes": "11|c",
        "topic.t.depth": "0|g",
        "topic.t.backend_depth": "0|g",
        "topic.t.channel.c.message_count": "3|c",
        "topic.t.channel.c.depth": "0|g",
        "topic.t.channel.c.backend_depth": "0|g",
        "topic.t.channel.c.in_flight_count": "2|g",
        "topic.t.channel.c.deferred_count": "0|g",
        "topic.t.channel.c.requeue_count": "0|c",
        "topic.t.channel.c.timeout_count": "0|c",
        "topic.t.channel.c.clients": "1|g",
    }
    assert memory == {
        f"mem.{name}"
        for name in (
            "heap_objects",
            "heap_idle_bytes",
            "heap_in_use_bytes",
            "heap_released_bytes",
            "gc_pause_usec_100",
            "gc_pause_usec_99",
            "gc_pause_usec_95",
            "next_gc_bytes",
            "gc_runs",
        )
    }


@given(st.lists(st.text("abc.:|", min_size=1, max_size=40)), st.integers(1, 100))
def test_packets_lose_nothing_and_are_no_larger_than_they_may(lines: list[str], size: int) -> None:
    made = list(packets(lines, size))
    assert b"".join(made).decode().splitlines() == lines
    assert all(len(packet) <= size or packet.count(b"\n") == 1 for packet in made)
    firsts = [packet.index(b"\n") + 1 for packet in made[1:]]
    assert all(len(packet) + first > size for packet, first in zip(made, firsts, strict=False))
