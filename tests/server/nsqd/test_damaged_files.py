"""What an nsqd delivers whose files were damaged while it was stopped, and what it accepts after that."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.data_paths import bodies, consume, make_channel, nsqd_at, take
from tests.support.raw import Client, channel_stats, get

#: Every message goes to the disk at once.
ON_DISK: dict[str, Any] = {"mem_queue_size": 0}
#: Bytes before the body in a record of the files.
HEADER_BYTES = 30


def fill(path: Path, *messages: bytes) -> Path:
    """Leave messages in the files of a channel; returns the file."""
    with nsqd_at(path, "ours", **ON_DISK) as nsqd:
        make_channel(nsqd)
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *messages)
    return path / "t:c.diskqueue.000000.dat"


@pytest.mark.parametrize("byte", [0, 3, 14, 29, "zeros"])
def test_what_is_published_after_a_restart_arrives_behind_any_damage(byte: int | str, tmp_path: Path) -> None:
    file = fill(tmp_path, *bodies(20, first=10))
    data = bytearray(file.read_bytes())
    if isinstance(byte, str):
        data[10 * (HEADER_BYTES + 2) :] = bytes(len(data))
        expected = bodies(10, first=10)
    else:
        data[10 * (HEADER_BYTES + 2) + byte] ^= 0x41
        expected = [*bodies(10, first=10), *bodies(9, first=21)]
    file.write_bytes(data)
    with nsqd_at(tmp_path, "ours", **ON_DISK) as nsqd:
        with Client(nsqd.tcp_address) as client:
            for body in bodies(50, first=1000):
                client.send(b"PUB t\n", len(body).to_bytes(4), body)
                client.expect(b"OK")
        expected += bodies(50, first=1000)
        assert [message.body for message in consume(nsqd, len(expected))] == expected
        assert channel_stats(nsqd.http_address, "t")["depth"] == 0
    assert (tmp_path / f"{file.name}.bad").read_bytes() == data


def test_heartbeats_go_on_while_a_long_stretch_of_damage_is_searched(tmp_path: Path) -> None:
    """Hex digits look like an id wherever one reads them."""
    file = fill(tmp_path, b"first", b"damaged", b"last")
    record = HEADER_BYTES + 5
    data = file.read_bytes()
    with file.open("wb") as written:
        written.write(data[:record] + b"\x7f" + data[record + 1 : -record])
        for _ in range(100):
            written.write(b"0123456789abcdef" * 65536)
        written.write(data[-record:])
    with nsqd_at(tmp_path, "process", **ON_DISK) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", b'\0\0\0\x1b{"heartbeat_interval":1000}')
        client.expect(b"OK")
        client.subscribe("t", rdy=10)
        heartbeats = 0
        received: list[bytes] = []
        while len(received) < 2:
            kind, payload = client.frame(heartbeats=True)
            if payload == b"_heartbeat_":
                client.send(b"NOP\n")
                heartbeats += 1
                assert get(nsqd.http_address, "/ping").body == b"OK"
            else:
                assert kind == 2
                received.append(payload[26:])
        assert received == [b"first", b"last"]
        assert heartbeats


@pytest.mark.real_nsqd
def test_nsqs_own_takes_over_what_a_restart_left(tmp_path: Path) -> None:
    """A file that is half read and another behind it, then an emptied queue; neither seems damaged to it."""
    fill(tmp_path, *bodies(20))
    with (
        nsqd_at(tmp_path, "ours", **ON_DISK) as nsqd,
        Client(nsqd.tcp_address) as client,
        Client(nsqd.tcp_address) as publisher,
    ):
        client.subscribe("t", rdy=1)
        assert [message.body for message in take(client, 5)] == bodies(5)
        publisher.publish("t", *bodies(10, first=20))
    with nsqd_at(tmp_path, "real", **ON_DISK) as nsqd:
        assert channel_stats(nsqd.http_address, "t")["depth"] == 25
        assert {message.body for message in consume(nsqd, 25)} == {*bodies(25, first=5)}
    for kind in ("ours", "real"):
        with nsqd_at(tmp_path, kind, **ON_DISK) as nsqd:
            assert channel_stats(nsqd.http_address, "t")["depth"] == 0
    with nsqd_at(tmp_path, "real", **ON_DISK) as nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies(10))
        assert [message.body for message in consume(nsqd, 10)] == bodies(10)
    assert not list(tmp_path.glob("*.bad"))
