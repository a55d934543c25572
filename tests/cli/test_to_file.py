"""``gnsq-like to-file`` as a process, beside NSQ's own."""

import gzip
import os
import random
import re
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.testing import wait_until
from tests.support.commands import PATIENCE
from tests.support.daemons import KINDS, running_nsqd, running_nsqlookupd, wait_for
from tests.support.files import as_nobody, needs_root, shared_directory
from tests.support.patient import NsqdHTTPClient
from tests.support.tools import (
    COMMAND,
    Tool,
    counts,
    files_below,
    fill,
    go_tool,
    numbered,
    run_tool,
    running_tool,
    unfinished,
)

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)
#: Messages of the test that kills it; raise it for a longer look.
MESSAGES = int(os.environ.get("GNSQ_LIKE_KILLED_MESSAGES", "20000"))


def text(path: str, data: bytes) -> bytes:
    if path.endswith(".gz"):
        return gzip.decompress(data)
    if path.endswith(".zst"):
        import zstandard

        found = b""
        while data:
            frame = zstandard.ZstdDecompressor().decompressobj()
            found += frame.decompress(data)
            assert frame.eof, "the last frame is incomplete"
            data = frame.unused_data
        return found
    return data


def found(directory: Path) -> dict[str, bytes]:
    """The files that users see, decompressed."""
    visible = {name: data for name, data in files_below(directory).items() if "/." not in f"/{name}"}
    return {name: text(name, data) for name, data in visible.items()}


def lines_of(directory: Path) -> list[bytes]:
    return [line for data in found(directory).values() for line in data.splitlines()]


def flags(nsqd: Any, directory: Path, *more: str) -> list[str]:
    return [f"-nsqd-tcp-address={nsqd.tcp_address}", f"-output-dir={directory}", *more]


def wait_until_finished(nsqd: Any, topic: str, count: int, channel: str = "nsq_to_file") -> None:
    """Wait until the tool that runs has finished so many messages."""
    wait_until(
        lambda: counts(nsqd, topic, channel)["finished"] == count,
        PATIENCE,
        lambda: f"{count} of {topic}/{channel} finished: {counts(nsqd, topic, channel)}",
    )


def early_in_its_hour() -> str:
    """A time zone for the tools: the hour is in the names of files, and does not change soon in this one."""
    return "UTC" if time.gmtime().tm_min < 30 else "Asia/Kolkata"


@both
@pytest.mark.parametrize("more", [[], ["--gzip"], ["--zstd"], ["--rotate-size=3000"], ["--work-dir={}/work", "-gzip"]])
def test_every_message_is_a_line_and_finished_after_its_sync(kind: Any, more: list[str], tmp_path: Path) -> None:
    bodies = numbered(2000)
    more = [each.format(tmp_path) for each in more]
    with running_nsqd(kind) as nsqd:
        fill(nsqd, "t", bodies, "nsq_to_file")
        with running_tool("to-file", "--topic=t", *flags(nsqd, tmp_path / "out", *more), "-sync-interval=50ms") as tool:
            wait_until_finished(nsqd, "t", len(bodies))
            # What is finished is on disk, and readable, while the files are open.
            assert sorted(lines_of(tmp_path)) == bodies
            assert tool.end() == 0
        assert sorted(lines_of(tmp_path / "out")) == bodies


@pytest.mark.parametrize("compression", ["", "--gzip"])
def test_what_is_not_synced_is_not_finished(compression: str, tmp_path: Path) -> None:
    """The first message of a file is synced at once, and the next ones with their SIGHUP."""
    with running_nsqd() as nsqd:
        fill(nsqd, "t", [b"first"], "nsq_to_file")
        arguments = flags(nsqd, tmp_path, *filter(None, [compression]), "--sync-interval=1h")
        with running_tool("to-file", "--topic=t", *arguments) as tool:
            wait_until_finished(nsqd, "t", 1)
            fill(nsqd, "t", numbered(10))
            wait_for(lambda: counts(nsqd, "t", "nsq_to_file")["in_flight"] == 10)
            if not compression:
                wait_for(lambda: len(lines_of(tmp_path)) == 11)
            assert counts(nsqd, "t", "nsq_to_file")["in_flight"] == 10

            def is_finished() -> bool:
                # What nsqd has sent may not have come when the signal does, and then it is for the next one.
                tool.process.send_signal(signal.SIGHUP)
                return counts(nsqd, "t", "nsq_to_file")["finished"] == 11

            wait_for(is_finished, "all messages finished")
            assert sorted(lines_of(tmp_path)) == [b"first", *numbered(10)]
            assert tool.end() == 0


@both
def test_a_signal_in_the_middle(kind: Any, tmp_path: Path) -> None:
    bodies = [body.ljust(200, b".") for body in numbered(20_000)]
    with running_nsqd(kind, mem_queue_size=30_000) as nsqd:
        fill(nsqd, "t", bodies, "nsq_to_file")
        with running_tool("to-file", "--topic=t", *flags(nsqd, tmp_path), "--gzip", "--max-in-flight=100") as tool:
            wait_for(lambda: unfinished(nsqd, "t", "nsq_to_file") < 19_000)
            assert tool.end() == 0
            assert "Traceback" not in tool.err
        written = lines_of(tmp_path)
        # Each line is a message that is finished, and nothing is both in the files and in the channel.
        assert len(set(written)) == len(written) == len(bodies) - unfinished(nsqd, "t", "nsq_to_file")


@pytest.mark.parametrize("more", [[], ["--work-dir={}/work"], ["--gzip"]])
def test_sighup_closes_the_file(more: list[str], tmp_path: Path) -> None:
    """NSQ's own ends with an error on the next message if there is a work dir."""
    with running_nsqd() as nsqd:
        fill(nsqd, "t", [b"one"], "nsq_to_file")
        arguments = flags(nsqd, tmp_path / "out", *(each.format(tmp_path) for each in more))
        with running_tool("to-file", "--topic=t", *arguments, TZ=early_in_its_hour()) as tool:
            wait_until_finished(nsqd, "t", 1)
            tool.process.send_signal(signal.SIGHUP)
            if more:
                wait_for(lambda: any(data == b"one\n" for data in found(tmp_path / "out").values()))
            fill(nsqd, "t", [b"two"])
            wait_for(lambda: sorted(lines_of(tmp_path)) == [b"one", b"two"])
            assert tool.end() == 0
        assert len(found(tmp_path / "out")) == (2 if more else 1)


def test_a_file_that_was_renamed_is_left(tmp_path: Path) -> None:
    """As logrotate does. NSQ's own goes on writing into the renamed one."""
    with running_nsqd() as nsqd:
        fill(nsqd, "t", [b"one"], "nsq_to_file")
        arguments = flags(nsqd, tmp_path, "--filename-format=<TOPIC>.log", "--sync-interval=50ms")
        with running_tool("to-file", "--topic=t", *arguments) as tool:
            wait_until_finished(nsqd, "t", 1)
            (tmp_path / "t.log").rename(tmp_path / "t.log.1")
            for number in (2, 3):  # the first of these may be in either
                fill(nsqd, "t", [b"%d" % number])
                wait_until_finished(nsqd, "t", number)
            assert tool.end() == 0
        assert sorted(lines_of(tmp_path)) == [b"2", b"3", b"one"]
        assert b"3\n" in (tmp_path / "t.log").read_bytes()


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["-gzip", "-gzip-level=1"],
        ["-rotate-size=2000"],
        ["-rotate-size=2000", "-gzip", "-filename-format=<TOPIC>/x<REV>.<DATETIME>"],
        ["-rotate-interval=1h", "-datetime-format=%y%m%d"],
        ["-work-dir={}/work", "-host-identifier=h-<SHORT_HOST>"],
        ["-filename-format=<TOPIC>.<HOST>.log"],
        ["-skip-empty-files", "-topic-pattern=^t$"],
        ["-consumer-opt=max_attempts,3", "-consumer-opt=snappy"],
    ],
)
@pytest.mark.real_nsqd
def test_the_same_messages_give_the_files_of_nsq_to_file(more: list[str], tmp_path: Path) -> None:
    """The same names, and the same lines in all of them; with one nsqd and one at a time in flight, the same files."""
    bodies = numbered(300)
    programs = {"theirs": [go_tool("nsq_to_file")], "ours": None}
    written = {}
    zone = early_in_its_hour()
    with running_nsqd("real") as nsqd:
        for name, command in programs.items():
            fill(nsqd, "t", bodies, name)
            (tmp_path / name).mkdir()
            arguments = flags(nsqd, tmp_path / name / "out", "-topic=t", f"-channel={name}", "-max-in-flight=1")
            arguments += [each.format(tmp_path / name) for each in more]
            started = partial(running_tool, command=command) if command else partial(running_tool, "to-file")
            with started(*arguments, TZ=zone) as tool:
                wait_until_finished(nsqd, "t", len(bodies), name)
                assert tool.end() == 0
            with NsqdHTTPClient(nsqd.http_address) as http:
                http.delete_topic("t")
            written[name] = found(tmp_path / name)
    assert written["ours"] == written["theirs"]
    assert sorted(lines_of(tmp_path / "ours")) == bodies


def test_topics_by_a_pattern_and_new_ones(tmp_path: Path) -> None:
    with (
        running_nsqlookupd() as lookupd,
        running_nsqd(lookupd_tcp_addresses=(lookupd.tcp_address,), broadcast_address="127.0.0.1") as nsqd,
    ):
        fill(nsqd, "web_clicks", [b"one"])
        fill(nsqd, "other", [b"no"])
        arguments = [f"--lookupd-http-address={lookupd.http_address}", f"--output-dir={tmp_path}"]
        arguments += ["--topic-pattern=^web_", "--topic-refresh=100ms", "--lookupd-poll-interval=100ms"]
        with running_tool("to-file", *arguments, "--filename-format=<TOPIC>") as tool:
            wait_for(lambda: lines_of(tmp_path) == [b"one"])
            fill(nsqd, "web_views", [b"two"])
            wait_for(lambda: found(tmp_path) == {"web_clicks": b"one\n", "web_views": b"two\n"})
            assert tool.end() == 0
        assert counts(nsqd, "other", "nsq_to_file")["message"] == 0


def test_files_go_to_a_store_when_they_are_rotated(tmp_path: Path) -> None:
    bodies = numbered(100)
    with running_nsqd() as nsqd:
        fill(nsqd, "t", bodies, "nsq_to_file")
        arguments = [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--output-dir=file://{tmp_path}/store"]
        arguments += [f"--work-dir={tmp_path}/work", "--gzip", "--rotate-size=500", "--sync-interval=100ms"]
        with running_tool("to-file", "--topic=t", *arguments) as tool:
            wait_until_finished(nsqd, "t", len(bodies))
            wait_for(lambda: len(found(tmp_path / "store")) == 2)
            # The store fails: its directory is a file.
            (tmp_path / "store").rename(tmp_path / "stored")
            (tmp_path / "store").touch()
            fill(nsqd, "t", numbered(100, "more"))
            tool.wait_for_line("cannot upload")
            wait_for(lambda: unfinished(nsqd, "t", "nsq_to_file") == 0)
            assert tool.end() == 0
        (tmp_path / "store").unlink()
        with running_tool("to-file", "--topic=t", *arguments, "--skip-empty-files") as tool:
            wait_for(lambda: len(lines_of(tmp_path / "store")) + len(lines_of(tmp_path / "stored")) == 200)
            assert tool.end() == 0
    assert found(tmp_path / "work") == {}
    everything = [*lines_of(tmp_path / "store"), *lines_of(tmp_path / "stored")]
    assert sorted(everything) == sorted([*bodies, *numbered(100, "more")])


# -- killed -----------------------------------------------------------------------------------------


def has_at_most(nsqd: Any, left: int) -> bool:
    return unfinished(nsqd, "t", "nsq_to_file") <= left


@pytest.mark.timeout(600)
@pytest.mark.parametrize("compression", ["--gzip", "--zstd"])
def test_kill_9_ten_times_loses_nothing_and_every_file_is_readable(compression: str, tmp_path: Path) -> None:
    """Only messages that nsqd took back when their time was over may be written twice: those in flight at a kill."""
    kills = 10
    bodies = [body.ljust(100, b".") for body in numbered(MESSAGES)]
    chance = random.Random(7)
    # nsqd delivers what was in flight at a kill again when its time is over.
    with running_nsqd("process", mem_queue_size=MESSAGES + 1, msg_timeout=5.0) as nsqd:
        fill(nsqd, "t", bodies, "nsq_to_file")
        arguments = ["to-file", "--topic=t", *flags(nsqd, tmp_path / "out", compression), "--max-in-flight=200"]
        arguments += [f"--work-dir={tmp_path / 'work'}", "--rotate-size=100000"]
        for kill in range(kills):
            with running_tool(*arguments) as tool:
                share = (kill + chance.random()) / (kills + 1)
                left = int(MESSAGES * (1 - share))
                wait_for(partial(has_at_most, nsqd, left))
                tool.process.kill()
                tool.process.wait()
        with running_tool(*arguments) as tool:
            wait_for(lambda: unfinished(nsqd, "t", "nsq_to_file") == 0)
            assert tool.end() == 0
        timed_out = counts(nsqd, "t", "nsq_to_file")["timed_out"]
    assert found(tmp_path / "work") == {}
    written = Counter(lines_of(tmp_path / "out"))
    assert set(written) == set(bodies)
    assert sum(written.values()) - len(written) <= timed_out


# -- errors -----------------------------------------------------------------------------------------


def last_line(tool: Tool) -> str:
    return tool.err.splitlines()[-1]


def test_a_disk_that_is_full_ends_it_and_nothing_unsynced_is_finished(tmp_path: Path) -> None:
    bodies = numbered(2000)
    with running_nsqd() as nsqd:
        fill(nsqd, "t", bodies, "nsq_to_file")
        limit = ["bash", "-c", 'ulimit -f 16; trap "" XFSZ; exec "$@"', "-"]
        command = [*limit, *COMMAND]
        with running_tool("to-file", "--topic=t", *flags(nsqd, tmp_path), command=command) as tool:
            assert tool.wait() == 1
            assert re.fullmatch(rf"Error: {tmp_path}/.*: File too large", last_line(tool))
            assert "Traceback" not in tool.err
        left = unfinished(nsqd, "t", "nsq_to_file")
        written = lines_of(tmp_path)
        assert 0 < len(bodies) - left <= len(written)
        with running_tool("to-file", "--topic=t", *flags(nsqd, tmp_path / "next")) as tool:
            wait_until_finished(nsqd, "t", left)
            assert tool.end() == 0
        assert set(bodies) <= {*written, *lines_of(tmp_path / "next")}


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with running_nsqd() as nsqd:
        fill(nsqd, "t", [b"x"], "nsq_to_file")
        done = run_tool("to-file", "--topic=t", *flags(nsqd, tmp_path / "file" / "out"))
        assert done.returncode == 1
        assert done.stderr.decode().splitlines()[-1] == f"Error: {tmp_path}/file/out: Not a directory"
        assert unfinished(nsqd, "t", "nsq_to_file") == 1


@pytest.mark.parametrize(
    ("planted", "more"),
    [
        (".to-file-0", []),
        ("t.log", ["--filename-format=<TOPIC>.log"]),
        (".upload", ["--work-dir={}", "--output-dir=file:///nowhere"]),
    ],
)
@needs_root
def test_what_another_user_put_there_is_refused(planted: str, more: list[str], tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "file").write_bytes(b"no newline")
    with running_nsqd() as nsqd, shared_directory() as shared:
        fill(nsqd, "t", [b"x"], "nsq_to_file")
        is_file = planted == "t.log"
        as_nobody("ln", "-s", tmp_path / "private" / ("file" if is_file else ""), shared / planted)
        done = run_tool("to-file", "--topic=t", *flags(nsqd, shared, *(each.format(shared) for each in more)))
        assert done.returncode == 1
        said = done.stderr.decode().splitlines()[-1]
        assert said.startswith(f"Error: {shared}/{planted}: it is a link")
        assert "--work-dir" in said
        assert unfinished(nsqd, "t", "nsq_to_file") == 1
    assert files_below(tmp_path) == {"private/file": b"no newline"}


def test_it_waits_for_nsqlookupds_and_topics(tmp_path: Path) -> None:
    arguments = ["--topic=t", "--lookupd-poll-interval=100ms", f"--output-dir={tmp_path}", "--sync-interval=100ms"]
    with running_nsqlookupd() as lookupd:
        address = lookupd.http_address
        lookupd.stop()
        with running_tool("to-file", f"--lookupd-http-address={address}", *arguments) as tool:
            tool.wait_for_line(f"WARNING: .*{address}")
            lookupd.start()
            options: dict[str, Any] = {"lookupd_tcp_addresses": (lookupd.tcp_address,)}
            with running_nsqd(broadcast_address="127.0.0.1", **options) as nsqd:
                fill(nsqd, "t", [b"x"])
                wait_for(lambda: lines_of(tmp_path) == [b"x"])
                assert tool.end() == 0
