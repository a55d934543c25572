"""Starting and stopping: in this process, and as processes."""

import contextlib
import os
import re
import resource
import signal
import socket as plain_socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket

from gnsq_like.errors import InvalidAddress
from gnsq_like.server import Nsqd, NsqdOptions, Nsqlookupd
from tests.support.daemons import Process, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.processes import no_descriptors
from tests.support.raw import Client, channel_stats, connect, get, sized, stats, topic_stats

ANYWHERE: dict[str, Any] = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}


def is_listening(address: str) -> bool:
    try:
        connect(address).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("daemon", [Nsqd, Nsqlookupd])
def test_nothing_happens_before_start_and_nothing_is_left_after_stop(daemon: Any) -> None:
    made = daemon(**ANYWHERE)
    assert (made.tcp_address, made.http_address, made.is_running) == ("", "", False)
    made.stop()
    with made:
        made.start()
        addresses = [made.tcp_address, made.http_address]
        assert made.is_running
        assert all(is_listening(address) for address in addresses)
    assert not made.is_running
    assert not any(is_listening(address) for address in addresses)
    made.stop()


def test_the_defaults_are_nsqs_on_loopback() -> None:
    options = NsqdOptions()
    assert (options.tcp_address, options.http_address) == ("127.0.0.1:4150", "127.0.0.1:4151")
    assert (options.msg_timeout, options.max_rdy_count, options.output_buffer_timeout) == (60.0, 2500, 0.25)


def test_a_start_that_fails_leaves_nothing_open() -> None:
    with Nsqd(**ANYWHERE) as other:
        failing = Nsqd(tcp_address="127.0.0.1:0", http_address=other.http_address)
        with pytest.raises(OSError, match=rf"listen \({other.http_address}\) failed - Address already in use"):
            failing.start()
        assert not failing.is_running
        with pytest.raises(InvalidAddress):
            Nsqd(tcp_address="nonsense").start()


def test_a_daemon_started_again_begins_empty() -> None:
    nsqd = Nsqd(**ANYWHERE)
    for _ in range(2):
        with nsqd, Client(nsqd.tcp_address) as client:
            assert stats(nsqd.http_address)["topics"] == []
            client.subscribe("t", rdy=1)
            client.publish("t", b"a")
            assert client.message().attempts == 1


def test_stop_ends_every_connection() -> None:
    nsqd = Nsqd(**ANYWHERE)
    nsqd.start()
    with connect(nsqd.http_address) as idle, Client(nsqd.tcp_address) as silent, Client(nsqd.tcp_address) as client:
        idle.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1000)
        client.subscribe("t", rdy=1)
        assert len(nsqd.clients) == 2
        nsqd.stop()
        assert not nsqd.clients
        assert idle.recv(1000) == b""
        silent.expect_end()
        client.expect_end()


def test_unix_sockets(tmp_path: Path) -> None:
    addresses: dict[str, Any] = {"tcp_address": f"unix:{tmp_path}/tcp", "http_address": f"unix:{tmp_path}/http"}
    with plain_socket.socket(plain_socket.AF_UNIX) as gone:  # the file of a daemon that was killed
        gone.bind(f"{tmp_path}/tcp")
    with Nsqd(**addresses) as nsqd, Client(nsqd.tcp_address) as client:
        assert (nsqd.tcp_address, nsqd.http_address) == (addresses["tcp_address"], addresses["http_address"])
        client.subscribe("t", rdy=1)
        client.publish("t", b"a")
        assert client.message().body == b"a"
        assert channel_stats(nsqd.http_address, "t")["clients"][0]["client_id"] == ""
        assert (get(nsqd.http_address, "/info").json()["tcp_port"]) == -1
        with pytest.raises(OSError, match="Address already in use"):
            Nsqd(**addresses).start()
        assert is_listening(nsqd.tcp_address)
    assert list(tmp_path.iterdir()) == []


def has_ipv6() -> bool:
    try:
        with plain_socket.socket(plain_socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_ipv6() -> None:
    with Nsqd(tcp_address="[::1]:0", http_address="[::1]:0") as nsqd:
        assert nsqd.tcp_address.startswith("[::1]:")
        with socket.create_connection(("::1", int(nsqd.tcp_address[6:]))) as sock:
            sock.sendall(b"  V2SUB t c\n")
            assert sock.recv(10) == b"\0\0\0\x06\0\0\0\0OK"
            (consumer,) = nsqd.broker.topics["t"].channels["c"].consumers
            (client,) = nsqd.clients
            assert consumer.client is client
            assert (client.settings.client_id, client.address[:6]) == ("::1", "[::1]:")


def test_clients_of_both_families_reach_all_interfaces_and_are_named_as_usual() -> None:
    with Nsqd(tcp_address=":0", http_address="0.0.0.0:0") as nsqd:
        tcp, http = (address.rpartition(":")[2] for address in (nsqd.tcp_address, nsqd.http_address))
        for host in ("127.0.0.1", "[::1]"):
            with Client(f"{host}:{tcp}") as client:
                client.subscribe("t")
                (shown,) = get(f"{host}:{http}", "/stats?format=json").json()["topics"][0]["channels"][0]["clients"]
                assert shown["remote_address"].rpartition(":")[0] == host
            wait_for(lambda: not nsqd.clients)


def test_a_socket_is_named_by_its_path_alone(tmp_path: Path) -> None:
    with Nsqd(tcp_address=f"{tmp_path}/tcp.sock", http_address=f"{tmp_path}/http.sock") as nsqd:
        assert (nsqd.tcp_address, nsqd.http_address) == (f"unix:{tmp_path}/tcp.sock", f"unix:{tmp_path}/http.sock")
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"x")


def test_what_is_announced_may_differ_from_what_is_listened_on() -> None:
    with Nsqd(**ANYWHERE, broadcast_address="example.net", broadcast_tcp_port=1, broadcast_http_port=2) as nsqd:
        assert (nsqd.broadcast_address, nsqd.broadcast_tcp_port, nsqd.broadcast_http_port) == ("example.net", 1, 2)
        assert get(nsqd.http_address, "/info").json()["broadcast_address"] == "example.net"
    with Nsqd(tcp_address="0.0.0.0:0", http_address="") as nsqd:
        assert nsqd.broadcast_address == plain_socket.gethostname()
        assert nsqd.http_address == ""


def test_a_slow_client_does_not_keep_the_others_waiting() -> None:
    with Nsqd(**ANYWHERE) as nsqd, Client(nsqd.tcp_address) as flood, Client(nsqd.tcp_address) as other:

        def publish_without_end() -> None:
            command = b"MPUB flood#ephemeral\n" + sized(b"\0\0\0\x64" + sized(b"x" * 200) * 100)
            while True:
                flood.send(command * 10)
                gevent.sleep(0)  # gevent's sockets switch only when they are full

        def read_answers() -> None:
            while flood.sock.recv(65536):
                pass

        greenlets = [gevent.spawn(publish_without_end), gevent.spawn(read_answers)]
        wait_for(lambda: "flood#ephemeral" in nsqd.broker.topics)
        other.subscribe("t", rdy=1)
        for _ in range(20):
            other.publish("t", b"a")
            other.send(b"FIN %b\n" % other.message().id)
        gevent.killall(greenlets)


# -- as processes --------------------------------------------------------------------------------------


@pytest.fixture(params=["nsqd", "nsqlookupd"])
def process(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = running_nsqd if request.param == "nsqd" else running_nsqlookupd
    with running("process") as daemon:
        yield daemon


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_with_status_0(process: Process, number: signal.Signals) -> None:
    assert process.process is not None
    assert re.match(
        r"\[nsq\w+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: TCP: listening on 127\.0\.0\.1:\d+\n", process.log
    )
    with connect(process.http_address) as idle, connect(process.tcp_address):
        idle.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1000)
        process.process.signal(number)
        wait_for(lambda: not process.is_running)
    assert process.process.status == 0
    assert "Traceback" not in process.log


def test_a_taken_port_is_one_sentence_and_status_1(process: Process, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gnsq_like", process.name, f"--tcp-address={process.tcp_address}"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(
        rf"Error: nsq\w+ cannot start: listen \({process.tcp_address}\) failed - Address already in use\n", done.stderr
    )


def test_options_as_flags() -> None:
    options: dict[str, Any] = {"msg_timeout": 1.5, "node_id": 7, "max_rdy_count": 3, "broadcast_address": "example.net"}
    with running_nsqd("process", **options) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n", sized(b'{"feature_negotiation":true}'))
        answer = client.frame()[1]
        assert b'"max_rdy_count":3,' in answer
        assert b'"msg_timeout":1500,' in answer
        assert get(nsqd.http_address, "/info").json()["broadcast_address"] == "example.net"
        client.publish("t", b"a")
        wait_for(lambda: topic_stats(nsqd.http_address, "t")["depth"] == 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--msg-timeout=5"], "'5': it must be a duration such as"),
        (["--node-id=1024"], "it must be from 0 to 1023"),
        (["--tcp-address=x"], 'write "host:port"'),
    ],
)
def test_a_wrong_flag_is_one_sentence(arguments: list[str], complaint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gnsq_like", "nsqd", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2)
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


PARENT = """
import subprocess, sys
flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--data-path=", "--exit-with-parent"]
daemon = subprocess.Popen([sys.executable, "-m", "gnsq_like", "nsqd", *flags],
                          stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
print(daemon.stderr.readline(), flush=True)
daemon.wait()
"""


def test_a_daemon_ends_with_its_parent_even_if_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().split()[-1]
        assert is_listening(address)
        os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not is_listening(address))


PATCHED = """
from gevent import monkey
monkey.patch_all()
import socket, urllib.request
from gnsq_like.server import Nsqd, Nsqlookupd
with Nsqlookupd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0") as lookupd:
    with Nsqd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0",
              lookupd_tcp_addresses=(lookupd.tcp_address,)) as nsqd:
        host, port = nsqd.tcp_address.split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"  V2PUB t\\n\\0\\0\\0\\1x")
            assert sock.recv(10) == b"\\0\\0\\0\\6\\0\\0\\0\\0OK"
        with urllib.request.urlopen(f"http://{nsqd.http_address}/stats?format=json") as answer:
            assert b'"topic_name":"t"' in answer.read()
print("fine")
"""


def test_they_run_where_everything_is_patched() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", PATCHED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limits of other processes cannot be set")
def test_without_descriptors_clients_wait_and_the_log_says_so_in_a_line_each() -> None:
    with running_nsqd("process") as nsqd:
        assert isinstance(nsqd, Process) and nsqd.process is not None

        def failures(address: str) -> int:
            return nsqd.log.count(f"Accept() failure - accept {address}")

        assert get(nsqd.http_address, "/ping").body == b"OK"  # one that listens may still be starting
        with contextlib.ExitStack() as closing:
            with no_descriptors(nsqd.process.pid):
                # The first ones keep what the daemon had open for a moment when its descriptors were counted.
                waiting = [closing.enter_context(connect(nsqd.tcp_address)) for _ in range(8)]
                wait_for(lambda: failures(nsqd.tcp_address) >= 2)
                for _ in range(8):
                    closing.enter_context(connect(nsqd.http_address))
                wait_for(lambda: failures(nsqd.http_address) >= 2)
                asking = gevent.spawn(get, nsqd.http_address, "/ping")
            waiting[-1].sendall(b"  V2SUB\n")
            assert b"E_INVALID" in waiting[-1].recv(100)
            assert asking.get(timeout=30).body == b"OK"
        log = nsqd.log
    assert f"WARNING: temporary Accept() failure - accept {nsqd.tcp_address}: too many open files" in log
    assert f"WARNING: temporary Accept() failure - accept {nsqd.http_address}: too many open files" in log
    assert "Traceback" not in log


def test_what_passes_errors_on_is_imported_while_there_are_descriptors() -> None:
    """gevent imports pickle for the first error of its thread pool; that failed, and whoever waited did so for ever."""
    source = "import sys; from gnsq_like.server import Nsqd, Nsqlookupd; print('pickle' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limits of other processes cannot be seen")
def test_a_process_takes_all_file_descriptors_that_it_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with running_nsqd("process") as nsqd:
            assert isinstance(nsqd, Process) and nsqd.process is not None
            assert resource.prlimit(nsqd.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
