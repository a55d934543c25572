"""Running until a signal, as a process of its own; for a Reader see test_threads.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from gnsq_like import NsqdHTTPClient, Producer
from tests.support.daemons import running_nsqd, wait_for
from tests.support.reading import channel_stats

PROGRAM = textwrap.dedent(
    """
    import sys
    import gevent
    from gnsq_like import Reader, run

    def handler(message):
        print("began", flush=True)
        while any(reader.stats()["state"] == "running" for reader in readers) or sys.argv[2] == "forever":
            gevent.sleep(0.01)

    readers = [Reader("t", name, handler, nsqd_tcp_addresses=sys.argv[1]) for name in ("a", "b")]
    run(*readers, stop_timeout=3600)
    print("stopped", flush=True)
    """
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handlers", ["ending", "forever"])
def test_a_signal_stops_all_readers_and_a_second_sigint_ends_the_wait(handlers: str, number: int) -> None:
    with running_nsqd("process") as nsqd:
        with NsqdHTTPClient(nsqd.http_address) as client:
            client.create_topic("t")
            for name in ("a", "b"):
                client.create_channel("t", name)
        with Producer(nsqd.tcp_address) as producer:
            producer.publish("t", b"x")
        command = [sys.executable, "-c", PROGRAM, nsqd.tcp_address, handlers]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["began\n"] * 2
            process.send_signal(number)
            if handlers == "forever":
                # 4: nsqd has heard CLS from both, so they stop at the same time.
                wait_for(lambda: [channel_stats(nsqd, channel=name)["clients"][0]["state"] for name in "ab"] == [4, 4])
                process.send_signal(signal.SIGINT)
            assert process.communicate()[0] == "stopped\n"
            assert process.returncode == 0
        finally:
            process.kill()
        left = 1 if handlers == "forever" else 0
        counts = {"depth": left, "in_flight_count": 0, "requeue_count": left, "timeout_count": 0}
        # nsqd may read the last answers only when the process has ended.
        wait_for(lambda: all(channel_stats(nsqd, channel=name).items() >= counts.items() for name in "ab"), f"{counts}")
