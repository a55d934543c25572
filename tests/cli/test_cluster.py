"""``gnsq-like cluster`` as a process: its daemons, its display, and its end."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.commands import (
    PATIENCE,
    daemons_of,
    gnsq_like,
    needs_proc,
    runs,
    terminal_environment,
)
from tests.support.daemons import wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient

CLUSTER = [sys.executable, "-m", "gnsq_like", "cluster"]


class Run:
    """A cluster whose output is read as it is written, from a pipe."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.written = ""
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def read(self) -> str:
        """All that it has written so far."""
        try:
            while data := os.read(self._descriptor, 65536):
                self.written += data.decode()
        except BlockingIOError:
            pass
        return self.written

    def wait_for(self, pattern: str) -> None:
        """Wait until it has written a match."""
        wait_for(lambda: re.search(pattern, self.read()), f"{pattern!r} in what it writes")

    def addresses(self) -> dict[str, tuple[str, str]]:
        """By the daemons' names, (TCP, HTTP)."""
        self.wait_for(r"nsqadmin .*\n")
        found = re.findall(r"(nsq\w+(?: \d)?) +TCP (\S+) +HTTP (\S+)", self.written)
        return {name: (tcp, http) for name, tcp, http in found}

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """End it; returns its exit status and its stderr."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=PATIENCE)
        self.read()
        return self.process.returncode, stderr.decode()


@contextmanager
def running(*arguments: str, cwd: Path | None = None, command: list[str] = CLUSTER) -> Iterator[Run]:
    """A cluster in a process group of its own."""
    ours, theirs = os.pipe()
    with subprocess.Popen(
        [*command, *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=terminal_environment(),
        process_group=0,
        cwd=cwd,
    ) as process:
        os.close(theirs)
        try:
            yield Run(process, ours)
        finally:
            process.kill()
            os.close(ours)


def free_ports(count: int) -> int:
    """The first of this many consecutive free ports, below those that the system gives to clients."""
    for first in random.sample(range(10_000, 32_000, count), 100):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    pytest.fail("no free ports")


@pytest.mark.commands
@needs_proc
def test_what_it_starts_says_and_ends() -> None:
    with running("--nsqds", "3", "--lookupds", "2", "--", "--max-msg-size", "10") as cluster:
        addresses = cluster.addresses()
        assert list(addresses) == ["nsqlookupd 1", "nsqlookupd 2", "nsqd 1", "nsqd 2", "nsqd 3"]
        daemons = daemons_of(cluster.process.pid)
        # The numbers are the node ids.
        assert set(daemons) == {"nsqlookupd", "nsqd 1", "nsqd 2", "nsqd 3"}
        nsqds = [tcp for name, (tcp, _) in addresses.items() if name.startswith("nsqd")]
        lookupds = [http for name, (_, http) in addresses.items() if name.startswith("nsqlookupd")]
        listed = '", "'.join(lookupds)
        assert f'Reader("topic", "channel", handler, lookupd_http_addresses=["{listed}"])\n' in cluster.written
        listed = '", "'.join(nsqds)
        assert f'Producer(["{listed}"])\n' in cluster.written
        options = " ".join(f"--lookupd-http-address={address}" for address in lookupds)
        assert f"nsqadmin {options}\n" in cluster.written
        for address in lookupds:
            with LookupdClient(address) as lookupd:
                assert sorted(node.tcp_address for node in lookupd.nodes()) == sorted(nsqds)
        with NsqdHTTPClient(addresses["nsqd 2"][1]) as nsqd:
            with pytest.raises(Exception, match="MSG_TOO_BIG"):
                nsqd.publish("clicks", b"x" * 11)
            nsqd.publish("clicks", b"x")
        cluster.wait_for(r"1 topics, 0 channels, 1 published, depth 1, 0 in flight, 0 deferred, 0 consumers\n")
        assert cluster.end() == (0, "Ended by SIGINT; no process is left.\n")
        assert not any(map(runs, daemons.values()))
    assert "\x1b" not in cluster.written


@pytest.mark.commands
@needs_proc
def test_a_daemon_that_ends_is_reported() -> None:
    with running("--nsqds", "2") as cluster:
        addresses = cluster.addresses()
        with NsqdHTTPClient(addresses["nsqd 1"][1]) as nsqd:
            nsqd.create_topic("clicks")
            nsqd.create_channel("clicks", "archive")
            nsqd.multi_publish("clicks", [b"x"] * 1234)
        sums = "1 topics, 1 channels, 1,234 published, depth 1,234, 0 in flight, 0 deferred, 0 consumers"
        cluster.wait_for(f"{sums}\n")
        os.kill(daemons_of(cluster.process.pid)["nsqd 2"], signal.SIGKILL)
        cluster.wait_for(r"nsqd 2 is gone: it was killed by SIGKILL\.")
        cluster.wait_for(f"{sums}; .*{addresses['nsqd 2'][1]}.*Connection refused")
        assert cluster.end(signal.SIGTERM) == (1, "Ended by SIGTERM; no process is left.\n")


@needs_proc
def test_it_ends_when_no_nsqd_is_left() -> None:
    with running("--nsqds", "1") as cluster:
        cluster.addresses()
        os.kill(daemons_of(cluster.process.pid)["nsqd 1"], signal.SIGKILL)
        _, stderr = cluster.process.communicate(timeout=PATIENCE)
        assert (cluster.process.returncode, stderr) == (1, b"No nsqd is left.\n")
        assert "nsqd 1 is gone: it was killed by SIGKILL." in cluster.read()


@pytest.mark.commands
def test_with_a_data_path_and_ports_it_is_the_same_cluster_again(tmp_path: Path) -> None:
    port = free_ports(20) + 10
    arguments = ["--nsqd-port", str(port), "--lookupd-port", str(port - 10), "--data-path", str(tmp_path / "data")]
    for count in (0, 1):
        with running(*arguments) as cluster:
            addresses = cluster.addresses()
            assert addresses["nsqlookupd"] == (f"127.0.0.1:{port - 10}", f"127.0.0.1:{port - 9}")
            assert addresses["nsqd 2"] == (f"127.0.0.1:{port + 2}", f"127.0.0.1:{port + 3}")
            with NsqdHTTPClient(addresses["nsqd 2"][1]) as nsqd:
                assert sum(topic["depth"] for topic in nsqd.stats()["topics"]) == count
                nsqd.publish("clicks", b"kept")
            assert cluster.end()[0] == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["nsqd-1", "nsqd-2"]


@pytest.mark.commands
def test_paths_in_nsqds_flags_are_relative_to_where_the_command_was_given(tmp_path: Path) -> None:
    (tmp_path / "nsqd.cfg").write_text("max_rdy_count = 7")
    (tmp_path / "gevent.py").write_text("raise SystemExit('this is not the place for modules')")
    command = [sys.executable, "-P", *CLUSTER[1:]]
    with running("--nsqds=1", "--", "--config=nsqd.cfg", cwd=tmp_path, command=command) as cluster:
        http = cluster.addresses()["nsqd 1"][1]
        with urllib.request.urlopen(f"http://{http}/config/max_rdy_count", timeout=PATIENCE) as answer:
            assert answer.read() == b"7"
        assert cluster.end()[0] == 0


def test_a_wrong_flag_of_nsqd_is_a_sentence() -> None:
    done = gnsq_like("cluster", "--", "--no-such-flag")
    assert done.returncode == 2
    assert re.fullmatch(r"Error: nsqd 1 did not start: Error: No such option:? '?--no-such-flag'?.*\.\n", done.stderr)
