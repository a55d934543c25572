"""manage.py nsq_run and nsq_publish as processes, with a database that is a file."""

import json
import signal
import socket
import sys

import pytest

from gnsq_like import Producer
from tests.support.commands import needs_proc, runs
from tests.support.daemons import KINDS, delete_topics, running_nsqd, wait_for
from tests.support.scripts import run_beside
from tests.support.web import CLOSING, channel_of, client_states, get, wait_until_all_is_finished

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module", params=KINDS)
def shared(request):
    with running_nsqd(request.param) as daemon:
        yield daemon


@pytest.fixture
def nsqd(shared):
    delete_topics(shared.http_address)
    return shared


def publish(nsqd, topic, *bodies):
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish(topic, bodies)


def test_publish_and_run(project, nsqd):
    environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
    for arguments, stdin in [([], "one\n\ntwo"), (["three", "--defer", "0.1"], "")]:
        done = project.manage("nsq_publish", "orders", *arguments, stdin=stdin, **environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with project.running("nsq_run", "book", "work", **environment) as server:
        wait_for(lambda: len(server.noted("booked")) == 3, "the messages")
        assert server.end() == 0
    assert sorted(project.lines("book")) == ["one", "three", "two"]
    assert sorted(server.noted("signal_handled")) == [f"book/book/{name}/None" for name in ("one", "three", "two")]
    assert server.log.splitlines()[:2] == ["Reading orders/book: book", "Reading work/workers: work"]


def test_publish_says_what_is_wrong(project):
    done = project.manage("nsq_publish", "orders", "x", NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1", NSQ_TIMEOUT="30")
    assert done.returncode == 1
    assert "CommandError: every nsqd is unreachable: no connection to 127.0.0.1:1" in done.stderr
    done = project.manage("nsq_publish", "two words", "x", NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    assert (done.returncode, "invalid topic name" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        pytest.param(
            *(["boook"], {}, "CommandError: there is no reader 'boook'; there are book, fail, never, pair, work"),
            marks=pytest.mark.sample,
        ),
        ([], {"NSQ_MAX_ATTEMPTS": "many"}, "(gnsq_like.E002) NSQ_MAX_ATTEMPTS: it must be a whole number."),
        (["--processes", "0"], {}, "CommandError: invalid option processes=0: it must be 1 or more"),
    ],
)
def test_run_says_what_is_wrong(project, arguments, environment, text):
    """All texts are in test_checks.py, which calls the commands in its own process."""
    done = project.manage("nsq_run", *arguments, **{"NSQ_NSQD_TCP_ADDRESSES": "127.0.0.1:1", **environment})
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_patched_handlers_may_be_greenlets(project, nsqd):
    publish(nsqd, "greenlets", b"x")
    environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "GREENLETS": "1", "PATCHED": "1"}
    with project.running("nsq_run", "greenlet", **environment) as server:
        wait_for(lambda: server.noted("greenlet") == ["x"])
        assert server.end() == 0


@pytest.mark.parametrize("patched", ["", "1"])
def test_of_two_handlers_one_rolls_back_and_the_other_commits(project, nsqd, patched):
    publish(nsqd, "pairs", b"good", b"bad")
    environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "PATCHED": patched}
    with project.running("nsq_run", "pair", **environment) as server:
        wait_for(lambda: sorted(server.noted("paired")) == ["bad", "good"], "both")
        assert server.end() == 0
    assert project.lines("pair") == ["good"]


@pytest.mark.parametrize("patched", [pytest.param("", marks=pytest.mark.sample), "1"])
def test_a_signal_lets_running_handlers_end(project, nsqd, patched):
    publish(nsqd, "work", b"gate-1", b"gate-2")
    environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "PATCHED": patched, "NSQ_STOP_TIMEOUT": "1000"}
    with project.running("nsq_run", "work", **environment) as server:
        wait_for(lambda: len(server.noted("began")) == 2)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client_states(nsqd, "work") == [CLOSING], "CLS")
        server.open_gate()
        assert server.wait_for_end() == 0
    assert sorted(server.noted("ended")) == ["gate-1", "gate-2"]
    wait_until_all_is_finished(nsqd, "work")
    assert channel_of(nsqd, "work")["requeue_count"] == 0


def test_handlers_that_take_too_long_give_their_messages_back(project, nsqd):
    publish(nsqd, "work", b"gate")
    with project.running("nsq_run", "work", "--stop-timeout", "0.1", NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server:
        wait_for(lambda: server.noted("began"))
        assert server.end() == 0
    assert server.noted("ended") == []
    wait_for(lambda: channel_of(nsqd, "work")["depth"] == 1, "the message in nsqd")


def test_a_failing_handler_is_given_up_in_a_thread_and_its_connections_are_closed(project, nsqd):
    publish(nsqd, "bad", b"x")
    with project.running("nsq_run", "fail", NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server:
        wait_for(lambda: server.noted("gave_up"))
        wait_for(lambda: channel_of(nsqd, "bad")["in_flight_count"] == 0)
        assert server.end() == 0
    # CONN_MAX_AGE is 0: each handler finds no connection of the one before.
    assert server.noted("failing") == ["True", "True"]
    assert server.noted("hook") == ["True", "True"]
    assert server.noted("signal_failed") == ["fail/fail/x/ValueError('meant')"] * 2
    assert server.noted("signal_given_up") == ["fail/fail/x/None"]
    assert server.log.count("the handler of bad/failing failed with message") == 2
    # The first failure of its kind in a minute has the traceback.
    assert server.log.count("Traceback") == 1
    assert server.log.count("\ngave up message") == 1


def test_a_message_that_is_too_old_is_treated_like_one_that_is_given_up(project, nsqd):
    publish(nsqd, "old", b"x", b"y")
    with project.running("nsq_run", "never", NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as server:
        wait_for(lambda: len(server.noted("expired")) == 2)
        assert server.end() == 0
    assert server.noted("expired") == ["True", "True"]
    assert sorted(server.noted("signal_expired")) == ["never/never/x/None", "never/never/y/None"]
    assert server.noted("never") == []


def test_health_and_metrics_are_served_where_the_readers_run(project, nsqd):
    publish(nsqd, "work", b"0.01", b"0.02")
    environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "NSQ_METRICS": "true"}
    with project.running(
        "nsq_run", "work", "--health", "127.0.0.1:0", listening=r"health on http://.*:(\d+)/healthz", **environment
    ) as server:
        wait_for(lambda: len(server.noted("ended")) == 2)
        status, body = get(server.port, "/healthz")
        assert (status, json.loads(body)["readers"][0]["channel"]) == (200, "workers")
        status, body = get(server.port, "/metrics")
        assert 'nsq_reader_handler_seconds_count{channel="workers",topic="work"} 2.0' in body.splitlines()
        assert get(server.port, "/")[0] == 404
        assert server.end() == 0


@needs_proc
@pytest.mark.parametrize("patched", ["", "1"])
def test_several_processes(project, patched):
    environment = {"NSQ_METRICS": "true", "NSQ_STOP_TIMEOUT": "1000", "NSQ_MAX_IN_FLIGHT": "2", "PATCHED": patched}
    with running_nsqd() as nsqd:
        environment["NSQ_NSQD_TCP_ADDRESSES"] = nsqd.tcp_address
        with project.running(
            *("nsq_run", "work", "--processes", "2", "--health", "127.0.0.1:0"),
            listening=r"health on http://.*:(\d+)/healthz",
            **environment,
        ) as server:
            wait_for(lambda: get(server.port, "/healthz")[0] == 200, "both processes", 60)
            publish(nsqd, "work", b"gate-1", b"gate-2")
            wait_for(lambda: len(server.noted("began")) == 2, "both handlers", 60)
            workers = server.pids("began")
            assert len(workers) == 2, json.dumps([server.notes, channel_of(nsqd, "work")], indent=1)
            assert str(server.process.pid) not in workers
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: client_states(nsqd, "work") == [CLOSING] * 2, "CLS", 60)
            assert "nsq_workers_wanted 2.0" in get(server.port, "/metrics")[1]
            server.open_gate()
            assert server.wait_for_end(60) == 0
            assert sorted(server.noted("ended")) == ["gate-1", "gate-2"]
            assert not [pid for pid in workers if runs(int(pid))]


@needs_proc
def test_each_line_of_a_json_log_is_an_object(project, nsqd):
    environment = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
    with project.running("nsq_run", "work", "--processes", "1", "--log-json", **environment) as server:
        wait_for(lambda: "running: 1 process" in server.log, "the start", 60)
        assert server.end() == 0
    assert [json.loads(line)["level"] for line in server.log.splitlines()]


SET_UP = """
import sys, django
django.setup()
from gnsq_like.contrib.django import publish, reader
from gnsq_like.contrib.django.signals import message_failed
print(sorted({"gevent", "greenlet", "requests"} & set(sys.modules)))
"""

COMMANDS = """
from django.core.management import call_command
for command in (["check"], ["migrate"], ["makemigrations", "--check"], ["test", "ledger"]):
    call_command(*command, verbosity=0)
"""


class Listening:
    """An address that accepts connections and never answers; knows whether one was made."""

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        return self

    def __exit__(self, *_):
        self.socket.close()

    @property
    def was_called(self):
        try:
            self.socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


def test_setting_up_loads_no_gevent_and_commands_that_need_no_connection_make_none(project):
    """Without gevent, so that an application may still patch, for example in wsgi.py."""
    with Listening() as nsqd, Listening() as lookupd:
        environment = {
            "NSQ_PRODUCER_NSQD_TCP_ADDRESSES": nsqd.address,
            "NSQ_LOOKUPD_HTTP_ADDRESSES": lookupd.address,
            "NSQ_TIMEOUT": "0.3",
        }
        done = run_beside(
            [sys.executable, "-c", SET_UP + COMMANDS],
            cwd=project.path,
            env=project.environment(DJANGO_SETTINGS_MODULE="settings", **environment),
        )
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "[]"), done.stderr
        assert not nsqd.was_called
        assert not lookupd.was_called
        assert project.manage("nsq_publish", "orders", "x", **environment).returncode == 1
        assert nsqd.was_called  # so a connection would have been seen
        assert not lookupd.was_called
