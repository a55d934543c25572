"""Flask's own server and ``flask nsq``, as processes: publishing from request threads, readers, blocking handlers."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsq_like import Producer, Reader
from tests.support.commands import needs_proc, runs
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.web import CLOSING, Server, client_states, flask, get

pytestmark = pytest.mark.servers

#: Far more seconds than a test waits for a server's end: one that waited for the time would fail it.
NO_END = "1000"


@pytest.fixture
def nsqd() -> Iterator[Running]:
    """Each test has its own: all have the application's topics, and count their messages."""
    with running_nsqd() as running:
        yield running


@pytest.fixture
def producer(nsqd: Running) -> Iterator[Producer]:
    with Producer(nsqd.tcp_address) as producer:
        yield producer


@pytest.mark.parametrize("patched", [pytest.param(False, marks=pytest.mark.sample), True])
def test_flask_nsq_run_ends_in_good_order(tmp_path: Path, nsqd: Running, producer: Producer, patched: bool) -> None:
    names = [f"gate-{number}" for number in range(60)]
    producer.multi_publish("work", [name.encode() for name in names])
    with flask(
        tmp_path,
        *("nsq", "run"),
        patched=patched,
        NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
        NSQ_STOP_TIMEOUT=NO_END,
    ) as process:
        wait_for(lambda: len(process.noted("handling")) == 50, "50 handlers")
        process.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client_states(nsqd, "work") == [CLOSING], "CLS")
        process.open_gate()
        assert process.wait_for_end() == 0
        handled = process.noted("handled")
        assert sorted(handled) == sorted(process.noted("handling"))
        assert len(handled) == 50
        assert "consuming work/workers" in process.log
        assert "Traceback" not in process.log
    # The other messages are delivered to the next Reader.
    with Reader("work", "workers", lambda m: handled.append(m.body.decode()), nsqd_tcp_addresses=nsqd.tcp_address):
        wait_for(lambda: len(handled) >= len(names), "the rest")
    assert sorted(handled) == sorted(names)


def test_health_and_metrics_of_flask_nsq_run(tmp_path: Path, nsqd: Running, producer: Producer) -> None:
    with flask(
        tmp_path,
        *("nsq", "run", "work", "--health", "127.0.0.1:0"),
        listening=r"health on http://127\.0\.0\.1:(\d+)/healthz",
        NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
    ) as process:
        producer.publish("work", b"0-x")
        wait_for(lambda: process.noted("handled"), "the message")
        wait_for(
            lambda: 'finished_messages_total{channel="workers",topic="work"} 1.0' in get(process.port, "/metrics")[1]
        )
        status, answer = get(process.port, "/healthz")
        assert (status, '"status": "ok"' in answer, nsqd.tcp_address in answer) == (200, True, True)
        assert get(process.port, "/")[0] == 404
        assert 'handler_seconds_count{channel="workers",topic="work"} 1.0' in get(process.port, "/metrics")[1]


@needs_proc
@pytest.mark.parametrize("patched", [False, True])
def test_flask_nsq_run_in_several_processes(tmp_path: Path, nsqd: Running, producer: Producer, patched: bool) -> None:
    with flask(
        tmp_path,
        *("nsq", "run", "work", "--processes=2", "--handler-timeout=500", "--health=127.0.0.1:0"),
        listening=r"health on http://127\.0\.0\.1:(\d+)/healthz",
        patched=patched,
        NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
        NSQ_STOP_TIMEOUT=NO_END,
    ) as process:
        wait_for(lambda: get(process.port, "/healthz")[0] == 200, "both processes", 60)
        names = [f"gate-{number}" for number in range(50)]
        producer.multi_publish("work", [name.encode() for name in names])
        wait_for(lambda: len(process.noted("handling")) == 50, "50 handlers", 60)
        workers = process.pids("handling")
        assert len(workers) == 2
        assert str(process.process.pid) not in workers, "the command supervises"
        maps = Path(f"/proc/{process.process.pid}/maps").read_text()
        assert "/gevent/" not in maps
        process.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client_states(nsqd, "work") == [CLOSING] * 2, "CLS", 60)
        process.open_gate()
        assert process.wait_for_end(60) == 0
        assert sorted(process.noted("handled")) == sorted(names)
        assert not [pid for pid in workers if runs(int(pid))]


def test_flask_nsq_run_says_what_is_wrong_before_it_supervises(tmp_path: Path) -> None:
    """Other texts are in test_extension.py."""
    arguments = ["nsq", "run", "--processes=2", "--health=nowhere"]
    with flask(tmp_path, *arguments, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1") as process:
        assert process.wait_for_end(60) != 0
        assert "Error: invalid option health='nowhere': it must be host:port" in process.log
        assert "Traceback" not in process.log


RELOADED = """
import os

from flask import Flask

from gnsq_like.contrib.flask import NSQ

app = Flask(__name__)
nsq = NSQ(app)


@nsq.reader("clicks", "c")
def handle(message):
    pass


with nsq.consuming(app):
    app.run(port=0, use_reloader=os.environ["RELOADER"] == "yes")
"""


@pytest.mark.parametrize("reloader", ["yes", "no"])
def test_consuming_in_the_parent_of_the_reloader_is_warned_about(tmp_path: Path, nsqd: Running, reloader: str) -> None:
    (tmp_path / "reloaded.py").write_text(RELOADED)
    with NsqdHTTPClient(nsqd.http_address) as client:
        client.create_topic("clicks")
        client.create_channel("clicks", "c")
    process = Server(["reloaded.py"], tmp_path, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address, RELOADER=reloader)
    try:
        connections = 2 if reloader == "yes" else 1
        wait_for(lambda: len(client_states(nsqd, "clicks")) == connections, "the readers of each process")
        if reloader == "yes":
            wait_for(lambda: "only watches files" in process.log, "the warning")
        assert process.log.count("only watches files") == connections - 1
    finally:
        process.end(signal.SIGINT)
