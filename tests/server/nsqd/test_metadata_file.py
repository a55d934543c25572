"""nsqd.dat: what it says, and an nsqd that cannot read or write it."""

import json
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.server.broker.metadata import BadMetadata, Entry, decode
from gnsq_like.server.daemon_process import DaemonFailed
from tests.support.daemons import KINDS, Kind, running_nsqd, wait_for
from tests.support.data_paths import REAL, make_channel, nsqd_at
from tests.support.raw import post, stats


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
def test_null_is_an_empty_nsqd_dat(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(b"null")
    with running_nsqd(kind, data_path=str(tmp_path)) as nsqd:
        assert stats(nsqd.http_address)["topics"] == []


@pytest.mark.parametrize("kind", ["process", REAL])
def test_a_broken_nsqd_dat_stops_the_start_and_is_left_as_it_is(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(b"{nonsense")
    with pytest.raises(DaemonFailed, match=f"failed to parse metadata in {tmp_path}/nsqd.dat - "):
        running_nsqd(kind, data_path=str(tmp_path)).__enter__()
    assert (tmp_path / "nsqd.dat").read_bytes() == b"{nonsense"


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
