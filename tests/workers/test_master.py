"""The supervisor and its workers as processes: what ends, what is replaced, and what becomes of messages."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import needs_proc, runs
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.supervised import APP, Supervised, publish, supervised, wait_until_ended
from tests.support.web import wait_until_all_is_finished

pytestmark = [needs_proc, pytest.mark.commands]


@pytest.fixture(scope="module")
def shared_nsqd() -> Iterator[Running]:
    with running_nsqd("process") as nsqd:
        yield nsqd


@pytest.fixture
def nsqd(shared_nsqd: Running) -> Running:
    from gnsq_like import NsqdHTTPClient

    with NsqdHTTPClient(shared_nsqd.http_address) as client:
        client.create_topic("work")
        client.delete_topic("work")
        client.create_topic("work")
        client.create_channel("work", "workers")
    return shared_nsqd


def handled(server: Supervised, count: int) -> None:
    """Wait until so many different messages have been handled."""
    wait_for(lambda: len(set(server.noted("handled"))) >= count, f"{count} messages", 60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_all_processes(tmp_path: Path, nsqd: Running, number: int) -> None:
    with supervised(tmp_path, nsqd.tcp_address, "--processes=2", "--patch", "--stop-timeout=1000s") as server:
        pids = server.wait_for_workers(2)
        names = [f"gate-{each}" for each in range(8)]
        publish(nsqd, names)
        wait_for(lambda: len(server.noted("handling")) == 8, "all handlers", 60)
        assert server.pids("handling") == {str(pid) for pid in pids}, "each process has its share of max_in_flight"
        server.process.send_signal(number)
        server.wait_for_log("worker 2 is to end")
        assert server.noted("handled") == []
        server.open_gate()
        assert server.wait_for_end(60) == 0
        assert sorted(server.noted("handled")) == sorted(server.noted("handling")) == sorted(names)
        assert not any(runs(pid) for pid in pids)
    wait_until_all_is_finished(nsqd, "work")


@pytest.mark.parametrize("target", ["greenlets", "threads"])
def test_a_second_signal_gives_messages_back_at_once(tmp_path: Path, nsqd: Running, target: str) -> None:
    flags = ["--processes=1", "--stop-timeout=1000s", *(["--patch"] if target == "greenlets" else [])]
    with supervised(tmp_path, nsqd.tcp_address, *flags, target=f"{APP}:{target}()") as server:
        server.wait_for_workers(1)
        publish(nsqd, ["gate-1"])
        wait_for(lambda: server.noted("handling"), "the handler", 60)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("worker 1 is to end")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_for_end(60) == 1


def test_few_messages_in_flight_for_many_processes_are_warned_about(tmp_path: Path, nsqd: Running) -> None:
    with supervised(tmp_path, nsqd.tcp_address, "--processes=4", MAX_IN_FLIGHT="3") as server:
        server.wait_for_workers(4)
        assert "max_in_flight 3 for 4 processes: each has 1, so that up to 4 messages" in server.log


def test_usr1_shows_the_stacks_of_greenlets_and_threads(tmp_path: Path, nsqd: Running) -> None:
    with supervised(tmp_path, nsqd.tcp_address, "--patch") as server:
        server.wait_for_workers(1)
        publish(nsqd, ["gate-1"])
        wait_for(lambda: server.noted("handling"), "the handler", 60)
        server.process.send_signal(signal.SIGUSR1)
        server.wait_for_log("stacks of all threads and greenlets")
        wait_for(lambda: "in work\n" in server.log, "the handler's stack", 60)
        server.open_gate()
        assert server.end() == 0


def test_usr1_shows_the_stack_of_a_blocked_hub(tmp_path: Path, nsqd: Running) -> None:
    with supervised(tmp_path, nsqd.tcp_address, "--heartbeat-timeout=1000s", "--stop-timeout=0s") as server:
        server.wait_for_workers(1)
        publish(nsqd, ["block-1"])
        wait_for(lambda: server.noted("handling"), "the handler", 60)
        server.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: "stacks of all threads" in server.log and "in work\n" in server.log, "the stack", 60)


def test_sigterm_to_a_worker_lets_it_drain_and_replaces_it(tmp_path: Path, nsqd: Running) -> None:
    with supervised(tmp_path, nsqd.tcp_address, "--patch") as server:
        [pid] = server.wait_for_workers(1)
        publish(nsqd, ["gate-1"])
        wait_for(lambda: server.noted("handling"), "the handler", 60)
        os.kill(pid, signal.SIGTERM)
        server.wait_for_log("worker 1 is to end (asked)")
        server.open_gate()
        server.wait_for_workers(1, [pid])
        assert server.noted("handled") == server.noted("handling") == ["gate-1"]
        assert server.metric('nsq_worker_restarts_total{reason="asked"}') == 1


def test_workers_whose_master_is_killed_drain_and_end(tmp_path: Path, nsqd: Running) -> None:
    with supervised(tmp_path, nsqd.tcp_address, "--processes=2", "--patch") as server:
        pids = server.wait_for_workers(2)
        publish(nsqd, ["gate-1"])
        wait_for(lambda: server.noted("handling"), "the handler", 60)
        [busy] = {int(pid) for pid in server.pids("handling")}
        server.process.kill()
        wait_until_ended(pids - {busy})
        assert runs(busy)
        server.open_gate()
        wait_until_ended(pids)
        assert server.noted("handled") == ["gate-1"]
    wait_until_all_is_finished(nsqd, "work")


def test_a_worker_with_a_blocked_hub_ends_with_its_master_too(tmp_path: Path, nsqd: Running) -> None:
    with supervised(tmp_path, nsqd.tcp_address, "--stop-timeout=100ms") as server:
        pids = server.wait_for_workers(1)
        publish(nsqd, ["block-1"])
        wait_for(lambda: server.noted("handling"), "the handler", 60)
        server.process.kill()
        wait_until_ended(pids)


def test_systemd_is_told_about_the_start_reloads_and_the_end(tmp_path: Path, nsqd: Running) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        name = f"@gnsq-like-{os.getpid()}-{tmp_path.name}"
        systemd.bind(f"\0{name[1:]}")
        systemd.settimeout(60)
        told: list[str] = []

        def wait_for_state(state: str) -> None:
            while state not in told:
                told.extend(systemd.recv(4096).decode().splitlines())
            told.clear()

        with supervised(tmp_path, nsqd.tcp_address, NOTIFY_SOCKET=name, WATCHDOG_USEC="100000") as server:
            wait_for_state("READY=1")
            [pid] = server.wait_for_workers(1)
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
            wait_for_state("WATCHDOG=1")
            server.process.send_signal(signal.SIGHUP)
            wait_for_state("RELOADING=1")
            wait_for_state("READY=1")
            server.process.send_signal(signal.SIGTERM)
            wait_for_state("STOPPING=1")
            assert server.wait_for_end(60) == 0


def test_a_reader_that_is_refused_for_ever_is_tried_again_and_reported(tmp_path: Path, nsqd: Running) -> None:
    with supervised(tmp_path, nsqd.tcp_address, target=f"{APP}:secret()") as server:
        server.wait_for_log("tls_v1")
        wait_for(lambda: server.metric('nsq_worker_restarts_total{reason="died"}') >= 2, "restarts", 60)
        assert server.status["status"] == "failing"
        assert "tls" in server.status["problems"][0]
        assert server.end() in (0, 1)


@pytest.mark.parametrize("patch", [False, True])
def test_processes_are_patched_if_that_is_asked_for_and_the_master_never(
    tmp_path: Path, nsqd: Running, patch: bool
) -> None:
    with supervised(tmp_path, nsqd.tcp_address, *["--patch"][: int(patch)]) as server:
        server.wait_for_workers(1)
        assert server.noted("loaded") == ["patched" if patch else "unpatched"]
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "/gevent/" not in maps
        assert "/greenlet/" not in maps
