"""Dramatiq's actors on NSQ: its workers in this process, and its own programs."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import gevent
import pytest
from dramatiq.errors import BrokerConnectionError, ConnectionClosed, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import MiddlewareError
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from gnsq_like import Producer
from gnsq_like.contrib.dramatiq import NSQBroker, NSQMessageProxy
from gnsq_like.deadletter import DeadLetter, open_envelope
from gnsq_like.errors import InvalidName, InvalidOption, PublishRefused
from gnsq_like.testing import RunningNsqd, running_nsqd
from tests.support.daemons import delete_topics, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.peer import scripted_nsqd
from tests.support.web import START_TIMEOUT, Server, closing

TOPIC = "dramatiq.default"
#: Our nsqd, and NSQ's own where it is on PATH.
KINDS = ["thread", pytest.param("real", marks=pytest.mark.real_nsqd)]


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[RunningNsqd]:
    with running_nsqd(msg_timeout=getattr(request, "param", 60), max_msg_size=2000) as running:
        yield running


@pytest.fixture
def nsqd(shared: RunningNsqd) -> RunningNsqd:
    delete_topics(shared.http_address)
    return shared


@contextmanager
def broker_of(nsqd: RunningNsqd, **options: Any) -> Iterator[NSQBroker]:
    broker = NSQBroker(nsqd_tcp_addresses=nsqd.tcp_address, nsqd_http_addresses=nsqd.http_address, **options)
    before = dramatiq.broker.global_broker
    dramatiq.set_broker(broker)
    try:
        yield broker
    finally:
        broker.close()
        dramatiq.broker.global_broker = before


@pytest.fixture
def broker(nsqd: RunningNsqd) -> Iterator[NSQBroker]:
    with broker_of(nsqd) as made:
        yield made


@contextmanager
def working(broker: NSQBroker, threads: int = 4) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=100)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def recording(broker: NSQBroker, seen: list[Any], **options: Any) -> dramatiq.Actor[..., Any]:
    return dramatiq.actor(actor_name="record", broker=broker, **options)(lambda value: seen.append(value))


def dead_letters(nsqd: RunningNsqd) -> list[DeadLetter]:
    """The only one, when it has come."""
    return [open_envelope(message.body) for message in nsqd.messages(f"{TOPIC}.dead", "c", 1)]


def test_actors_run(broker: NSQBroker) -> None:
    seen: list[int] = []
    record = recording(broker, seen)
    with working(broker):
        for number in range(200):
            record.send(number)
        broker.join("default")
    assert sorted(seen) == list(range(200))
    assert broker.get_declared_queues() == {"default"}
    assert broker.get_declared_delay_queues() == set()


@pytest.mark.parametrize("most", [3600.0, 0.2])
def test_a_delay_may_be_longer_than_nsqd_takes(nsqd: RunningNsqd, most: float) -> None:
    due: list[float] = []
    with broker_of(nsqd, max_defer=most) as broker, working(broker):
        record = dramatiq.actor(actor_name="record", broker=broker)(lambda: due.append(time.time()))
        sent = record.send_with_options(delay=700)
        broker.join("default")
    assert len(due) == 1
    assert due[0] >= sent.options["eta"] / 1000 - 0.002  # nsqd rounds to milliseconds
    assert sent.queue_name == "default"


def test_a_message_that_nsqd_delivers_too_early_is_deferred_again(nsqd: RunningNsqd) -> None:
    """As nsqd does at its restart."""
    due: list[float] = []
    with broker_of(nsqd) as broker:
        record = dramatiq.actor(actor_name="record", broker=broker)(lambda: due.append(time.time()))
        at = time.time() + 0.5
        broker._jobs.publish(TOPIC, record.message().copy(options={"eta": at * 1000}).encode())
        with working(broker):
            broker.join("default")
    assert [moment >= at - 0.002 for moment in due] == [True]


def test_a_job_that_fails_is_retried_and_then_a_dead_letter(nsqd: RunningNsqd, broker: NSQBroker) -> None:
    seen: list[str] = []

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=10, max_backoff=20)
    def fail(name: str) -> None:
        seen.append(name)
        raise ValueError(name)

    with working(broker):
        message = fail.send("x")
        broker.join("default")
    assert seen == ["x"] * 3
    [letter] = dead_letters(nsqd)
    assert (letter.topic, letter.channel, letter.attempts) == (TOPIC, "dramatiq", 1)
    assert letter.reason == "ValueError: x"
    assert dramatiq.Message.decode(letter.body).message_id == message.message_id


def job(**fields: Any) -> bytes:
    """A message as Dramatiq makes it."""
    return json.dumps({**dramatiq.Message("default", "fail", (), {}, {}).asdict(), **fields}).encode()


#: Messages that no actor can run, and why, as their dead letters say.
MALFORMED = {
    "no JSON": (b"{", "not a message of Dramatiq: "),
    "a list": (b"[]", "not a message of Dramatiq: "),
    "nested too deeply": (b"[" * 100_000, "not a message of Dramatiq: "),
    "an unknown field": (job(more=1), "not a message of Dramatiq: "),
    "args": (job(args=5), "not a message of Dramatiq: "),
    "kwargs": (job(kwargs=[]), "not a message of Dramatiq: kwargs cannot be of type list"),
    "options": (job(options=[]), "not a message of Dramatiq: options cannot be of type list"),
    "no options": (job(options=None), "not a message of Dramatiq: options cannot be of type NoneType"),
    "queue_name": (job(queue_name=["default"]), "not a message of Dramatiq: queue_name cannot be of type list"),
    "actor_name": (job(actor_name=["x"]), "not a message of Dramatiq: actor_name cannot be of type list"),
    "message_id": (job(message_id=[1]), "not a message of Dramatiq: message_id cannot be of type list"),
    "message_timestamp": (
        job(message_timestamp="now"),
        "not a message of Dramatiq: message_timestamp cannot be of type str",
    ),
    "throws": (job(options={"throws": "x"}), "not a message of Dramatiq: the option throws is no exception"),
    "no actor": (job(actor_name="nobody"), "ActorNotFound: nobody"),
    "arguments": (job(args=[1], options={"max_retries": 0}), "TypeError: "),
    "retries": (job(options={"retries": "x"}), "ValueError: fails"),
    "max_retries": (job(options={"max_retries": "x"}), "ValueError: fails"),
    "min_backoff": (job(options={"min_backoff": "x"}), "ValueError: fails"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_message_is_a_dead_letter(kind: Any) -> None:
    """It costs no thread of the worker. A middleware that chokes on an option costs no job."""
    with running_nsqd(kind=kind) as nsqd, broker_of(nsqd) as broker:
        seen: list[str] = []
        record = recording(broker, seen)

        @dramatiq.actor(broker=broker)
        def fail() -> None:
            raise ValueError("fails")

        with working(broker) as worker:
            for body, _ in MALFORMED.values():
                nsqd.publish(TOPIC, body)
            letters = [open_envelope(each.body) for each in nsqd.messages(f"{TOPIC}.dead", "c", len(MALFORMED))]
            reasons = {letter.body: letter.reason for letter in letters}
            for body, reason in MALFORMED.values():
                assert reasons[body].startswith(reason)
            record.send("good")
            broker.join("default")
            assert all(thread.is_alive() for thread in worker.workers)
        assert seen == ["good"]


def test_a_job_of_another_queue_runs_where_it_is(nsqd: RunningNsqd, broker: NSQBroker) -> None:
    """Its queue was renamed, or the messages were moved. What follows it, and its retries, stay in that queue, too."""
    seen: list[str] = []

    @dramatiq.actor(broker=broker, min_backoff=10, max_backoff=20)
    def once(name: str) -> None:
        seen.append(name)
        if len(seen) == 1:
            raise ValueError(name)

    with working(broker) as worker:
        nsqd.publish(TOPIC, once.message("x").copy(queue_name="before").encode())
        broker.join("default")
        assert all(thread.is_alive() for thread in worker.workers)
    assert seen == ["x", "x"]


def test_without_retries_a_job_that_fails_is_dropped(nsqd: RunningNsqd) -> None:
    """As with Dramatiq's own brokers."""
    seen: list[str] = []
    with broker_of(nsqd, middleware=[]) as broker:

        @dramatiq.actor(broker=broker)
        def fail() -> None:
            seen.append("x")
            raise ValueError("fails")

        with working(broker):
            fail.send()
            broker.join("default")
    assert seen == ["x"]
    assert f"{TOPIC}.dead" not in nsqd.topics()


def test_a_dead_letter_that_fits_only_without_envelope(nsqd: RunningNsqd, broker: NSQBroker) -> None:
    broker.declare_queue("default")
    with working(broker):
        broker._jobs.publish(TOPIC, b"x" * 2000)
        assert [message.body for message in nsqd.messages(f"{TOPIC}.dead", "c", 1)] == [b"x" * 2000]


@contextmanager
def refusing(what: str) -> Iterator[dict[str, Any]]:
    """Options of a Producer none of whose publishes succeeds."""
    if what == "unreachable":
        yield {"nsqd_tcp_addresses": "127.0.0.1:1", "timeout": 0.1}
    else:
        with running_nsqd(max_msg_size=10) as other:
            yield {"nsqd_tcp_addresses": other.tcp_address}


@pytest.mark.parametrize("what", ["unreachable", "refused"])
@pytest.mark.parametrize("kind", ["garbage", "not due", "rejected", "too often"])
def test_what_cannot_be_published_again_is_requeued_with_a_delay(nsqd: RunningNsqd, what: str, kind: str) -> None:
    with (
        broker_of(nsqd) as first,
        refusing(what) as producer,
        broker_of(nsqd, producer=producer, reader={"max_attempts": 1}) as broker,
    ):
        record = recording(broker, [])
        consumer = broker.consume("default", timeout=30_000)
        if kind == "garbage":
            nsqd.publish(TOPIC, b"not a message")
            assert next(consumer) is None
        elif kind == "not due":
            late = record.message().copy(options={"eta": (time.time() + 100) * 1000})
            nsqd.publish(TOPIC, late.encode())
            assert next(consumer) is None
        else:
            first.declare_queue("default")
            first.enqueue(record.message(1))
            message = next(consumer)
            assert message is not None
            if kind == "rejected":
                consumer.nack(message)
            else:
                consumer.requeue([message])
                consumer.close()
                consumer = broker.consume("default", timeout=100)
                wait_for(lambda: next(consumer) or nsqd.topic(TOPIC).channels["dramatiq"].deferred)
        nsqd.wait_until(TOPIC, "dramatiq", deferred=1, in_flight=0)
        consumer.close()


@pytest.mark.parametrize("what", ["unreachable", "refused"])
def test_a_job_whose_retry_cannot_be_published_is_requeued(nsqd: RunningNsqd, what: str) -> None:
    """Dramatiq logs the error, and acknowledges the job."""
    with (
        broker_of(nsqd) as first,
        refusing(what) as producer,
        broker_of(nsqd, producer=producer, reader={"default_requeue_delay": 0.01}) as broker,
    ):
        seen: list[int] = []

        @dramatiq.actor(broker=broker)
        def fail_once(value: int) -> None:
            seen.append(value)
            if len(seen) == 1:
                raise ValueError(value)

        first.declare_queue("default")
        with working(broker):
            first.enqueue(fail_once.message(7))
            first.join("default")
    assert seen == [7, 7]


class Refusing(dramatiq.Middleware):
    """Refuses the first message to an actor."""

    def __init__(self, actor_name: str) -> None:
        self._actor_name = actor_name
        self.has_refused = False

    def before_enqueue(self, broker: dramatiq.Broker, message: dramatiq.Message[Any], delay: int | None) -> None:
        if message.actor_name == self._actor_name and not self.has_refused:
            self.has_refused = True
            raise MiddlewareError("refused")


def following(kind: str, first: dramatiq.Actor[..., Any], second: dramatiq.Actor[..., Any]) -> dramatiq.Message[Any]:
    """A message to the first actor, after which one to the second is published."""
    if kind == "pipeline":
        return (first.message() | second.message()).messages[0]
    options: dict[str, Any] = {kind: second.actor_name}
    return first.message_with_options(**options)


@pytest.mark.parametrize("kind", ["pipeline", "on_success", "on_failure", "on_retry_exhausted"])
def test_a_job_runs_again_if_what_follows_it_cannot_be_published(nsqd: RunningNsqd, kind: str) -> None:
    """Dramatiq logs the error, and acknowledges the job, or rejects it."""
    with broker_of(nsqd, reader={"default_requeue_delay": 0.01}) as broker:
        ran: list[str] = []

        @dramatiq.actor(broker=broker, max_retries=0)
        def first() -> None:
            ran.append("first")
            if kind in ("on_failure", "on_retry_exhausted"):
                raise ValueError

        second = dramatiq.actor(actor_name="second", broker=broker)(lambda *_: ran.append("second"))
        broker.add_middleware(Refusing("second"))
        with working(broker):
            broker.enqueue(following(kind, first, second))
            broker.join("default")
    assert ran == ["first", "first", "second"]


def test_a_job_that_is_retried_anyway_is_not_requeued(nsqd: RunningNsqd, broker: NSQBroker) -> None:
    """Each retry would be another copy, which may be requeued, too. One thread, or the retry may be refused first."""
    ran: list[str] = []

    @dramatiq.actor(broker=broker, max_retries=1, min_backoff=1, max_backoff=2, on_failure="second")
    def first() -> None:
        ran.append("first")
        raise ValueError

    dramatiq.actor(actor_name="second", broker=broker)(lambda *_: ran.append("second"))
    broker.add_middleware(Refusing("second"))
    with working(broker, threads=1):
        first.send()
        broker.join("default")
    assert ran == ["first", "first", "second"]
    assert nsqd.topic(TOPIC).channels["dramatiq"].requeued == 0


def test_the_names_of_a_queue_are_checked_when_it_is_declared(nsqd: RunningNsqd) -> None:
    """The topic of 60 characters is good, and that of its dead letters has 65."""
    with broker_of(nsqd, topic="{queue}") as broker:
        for name in ("q" * 65, "q" * 60):
            with pytest.raises(InvalidName, match="1 to 64 characters"):
                recording(broker, [], queue_name=name)
        assert broker.get_declared_queues() == set()
    with broker_of(nsqd, topic="{queue}", dead_letters=None) as broker:
        broker.declare_queue("q" * 60)


def test_a_refused_queue_leaves_the_others() -> None:
    """Consumers block their threads; the script runs in this one."""
    in_thread = gevent.get_hub().threadpool.apply
    with scripted_nsqd() as nsqd:
        broker = NSQBroker(nsqd_tcp_addresses=nsqd.address)
        for name in ("good", "bad"):
            broker.declare_queue(name)
        good = in_thread(broker.consume, ("good", 1, 30_000))
        peer = nsqd.accept()
        assert peer.subscribe() == b"SUB dramatiq.good dramatiq"
        bad = in_thread(broker.consume, ("bad", 1, 30_000))
        other = nsqd.accept()
        other.identify()
        assert other.line() == b"SUB dramatiq.bad dramatiq"
        other.error("E_UNAUTHORIZED AUTH failed for SUB")
        with pytest.raises(ConnectionClosed, match="E_UNAUTHORIZED"):
            in_thread(next, (bad,))
        peer.messages(b"0123456789abcdef", body=dramatiq.Message("good", "actor", (), {}, {}).encode())
        assert in_thread(next, (good,)).actor_name == "actor"
        in_thread(broker.close)


def test_dead_letters_can_be_dropped(nsqd: RunningNsqd) -> None:
    with broker_of(nsqd, dead_letters=None) as broker, working(broker):
        broker.declare_queue("default")
        broker._jobs.publish(TOPIC, b"x")
        broker.join("default")
    with NsqdHTTPClient(nsqd.http_address) as client:
        assert [each["topic_name"] for each in client.stats()["topics"]] == [TOPIC]


def test_a_message_that_comes_too_often_is_a_dead_letter(nsqd: RunningNsqd) -> None:
    """A job that ends its worker would end all others, too."""
    with broker_of(nsqd, reader={"max_attempts": 3}) as broker:
        record = recording(broker, [])
        record.send(1)
        for _ in range(3):
            consumer = broker.consume("default", timeout=30_000)
            message = next(consumer)
            assert message is not None
            consumer.requeue([message])
            consumer.close()
        with working(broker):
            [letter] = dead_letters(nsqd)
        assert letter.attempts == 4


def test_jobs_that_are_not_done_are_touched() -> None:
    """The one at work and the one that waits behind it."""
    in_thread = gevent.get_hub().threadpool.apply
    ids = [b"0123456789abcdef", b"fedcba9876543210"]
    with scripted_nsqd() as nsqd:
        broker = NSQBroker(nsqd_tcp_addresses=nsqd.address)
        broker.declare_queue("default")
        consumer = in_thread(broker.consume, ("default", 2, 30_000))
        peer = nsqd.accept()
        peer.subscribe(msg_timeout=4000)
        peer.messages(*ids, body=dramatiq.Message("default", "actor", (), {}, {}).encode())
        for _ in ids:
            assert in_thread(next, (consumer,)) is not None
        untouched = {b"TOUCH " + each for each in ids}
        while untouched:
            untouched.discard(peer.line())
        in_thread(broker.close)


def test_a_stopping_worker_hands_back_what_it_has_not_begun(nsqd: RunningNsqd, broker: NSQBroker) -> None:
    """At once, while its job runs; and it fetches nothing more."""
    began, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    @dramatiq.actor(broker=broker)
    def wait(number: int) -> None:
        began.set()
        go_on.wait()
        seen.append(number)

    for number in range(3):
        wait.send(number)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    began.wait()
    nsqd.wait_until(TOPIC, "dramatiq", in_flight=2)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    nsqd.wait_until(TOPIC, "dramatiq", in_flight=1, depth=2)
    wait.send(3)
    nsqd.wait_until(TOPIC, "dramatiq", in_flight=1, depth=3)
    go_on.set()
    stopping.join()
    assert len(seen) == 1
    with working(broker):
        broker.join("default")
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_consumer_that_is_made_while_the_worker_stops_takes_nothing(nsqd: RunningNsqd, broker: NSQBroker) -> None:
    """Dramatiq makes one anew after an error of its connection."""
    record = recording(broker, [])
    record.send(1)
    worker = dramatiq.Worker(broker)
    before = broker.consume("default", timeout=10)
    message = wait_for(lambda: next(before))
    assert message is not None
    broker.emit_before("worker_shutdown", worker)
    after = broker.consume("default", timeout=10)
    nsqd.wait_until(TOPIC, "dramatiq", clients=2)
    before.requeue([message])
    assert [next(before), next(after)] == [None, None]
    nsqd.wait_until(TOPIC, "dramatiq", depth=1, in_flight=0)
    broker.emit_after("worker_shutdown", worker)
    message = next(broker.consume("default", timeout=30_000))
    assert message is not None


def test_a_paused_worker_goes_on(broker: NSQBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumers are closed and made again, the last of them with the thread of all."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.1)
    seen: list[int] = []
    record = recording(broker, seen)
    with working(broker) as worker:
        record.send(1)
        broker.join("default")
        worker.pause()
        record.send(2)
        worker.resume()
        broker.join("default")
    assert seen == [1, 2]


def test_flush_and_join(broker: NSQBroker) -> None:
    seen: list[int] = []
    record = recording(broker, seen)
    broker.flush("default")  # there is no topic yet
    with pytest.raises(QueueNotFound):
        broker.join("other")
    broker.join("default", timeout=5000)
    record.send(1)
    record.send_with_options(args=(2,), delay=100_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=10, interval=1)
    consumer = broker.consume("default", prefetch=2, timeout=30_000)
    message = next(consumer)
    assert isinstance(message, NSQMessageProxy)
    broker.flush_all()
    broker.join("default")
    consumer.ack(message)  # nsqd refuses it, and nothing happens
    consumer.close()
    with pytest.raises(QueueNotFound):
        broker.consume("other")


def test_join_needs_an_http_api(nsqd: RunningNsqd) -> None:
    broker = NSQBroker(nsqd_tcp_addresses=nsqd.tcp_address)
    broker.declare_queue("default")
    with pytest.raises(InvalidOption, match="nsqd_http_addresses"):
        broker.join("default")


def test_errors_are_dramatiqs_where_another_try_may_help(nsqd: RunningNsqd) -> None:
    broker = NSQBroker(nsqd_tcp_addresses="127.0.0.1:1", producer={"timeout": 0.1})
    record = recording(broker, [])
    with pytest.raises(BrokerConnectionError):
        record.send(1)
    broker.close()
    with broker_of(nsqd) as other, pytest.raises(PublishRefused):
        recording(other, []).send("x" * 2000)


def test_pipelines_groups_results_and_callbacks(broker: NSQBroker) -> None:
    broker.add_middleware(Results(backend=StubBackend()))
    seen: list[int] = []

    @dramatiq.actor(broker=broker, store_results=True)
    def add(left: int, right: int) -> int:
        return left + right

    @dramatiq.actor(broker=broker)
    def told(_: dict[str, Any], result: int) -> None:
        seen.append(result)

    with working(broker):
        pipeline = add.message(1, 2) | add.message_with_options(args=(3,))
        assert pipeline.run().get_result(block=True, timeout=60_000) == 6
        group = dramatiq.group([add.message(number, 1) for number in range(5)]).run()
        assert sorted(group.get_results(block=True, timeout=60_000)) == [1, 2, 3, 4, 5]
        add.send_with_options(args=(20, 3), on_success=told)
        wait_for(lambda: seen == [23])
        broker.join("default")


def test_each_queue_is_a_topic(nsqd: RunningNsqd) -> None:
    with broker_of(nsqd, topic="jobs.{queue}", channel="workers", reader={"max_in_flight": 7}) as broker:
        seen: list[int] = []
        record = recording(broker, seen, queue_name="mail")
        with working(broker):
            record.send(1)
            broker.join("mail")
            assert [*nsqd.topic("jobs.mail").channels] == ["workers"]
    assert seen == [1]


# -- Dramatiq's own programs ---------------------------------------------------------------------------------

PROGRAMS = {
    "threads": ["-m", "dramatiq"],
    "gevent": [str(Path(sys.executable).with_name("dramatiq-gevent"))],
}


@contextmanager
def program(kind: str, nsqd: RunningNsqd, directory: Path) -> Iterator[Server]:
    command = [*PROGRAMS[kind], "tests.contrib.dramatiq_app", "-p", "2", "-t", "4"]
    with closing(Server(command, directory, NSQD=nsqd.tcp_address)) as server:
        wait_for(lambda: server.noted("booted").count(str(server.process.pid)) == 2, "both workers", START_TIMEOUT)
        yield server
        if server.process.poll() is None:
            server.end()


@pytest.fixture
def send(nsqd: RunningNsqd) -> Iterator[Callable[[str], None]]:
    """Sends a job, as a program that does not have the actors does."""
    with Producer(nsqd.tcp_address) as producer:
        yield lambda name: producer.publish(TOPIC, dramatiq.Message("default", "job", (name,), {}, {}).encode())


@pytest.mark.servers
@pytest.mark.parametrize("shared", [1], indirect=True, ids=["1 s"])  # after which nsqd delivers its jobs again
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_worker_that_is_killed_loses_no_job(
    kind: str, nsqd: RunningNsqd, send: Callable[[str], None], tmp_path: Path
) -> None:
    names = [f"0.01-{number}" for number in range(200)]
    with program(kind, nsqd, tmp_path) as server:
        send("gate-first")
        for name in names:
            send(name)
        wait_for(lambda: "gate-first" in server.noted("began"))
        [pid] = server.pids("began") & {note.pid for note in server.notes if note.name == "gate-first"}
        os.kill(int(pid), signal.SIGKILL)
        server.open_gate()
        # Dramatiq's master ends the others, too: what supervises it starts all anew.
        assert server.wait_for_end()
    with program(kind, nsqd, tmp_path) as server:
        wait_for(lambda: {*server.noted("done")} == {"gate-first", *names})
        wait_for(lambda: not nsqd.topic(TOPIC).channels["dramatiq"].left)


@pytest.mark.servers
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_stopped_worker_hands_back_what_it_has(
    kind: str, nsqd: RunningNsqd, send: Callable[[str], None], tmp_path: Path
) -> None:
    """Each job runs once, in the first workers or in the next ones; a failing one three times."""
    names = [f"1-{number}" for number in range(40)]
    send("0-fail")
    for name in names:
        send(name)
    with program(kind, nsqd, tmp_path) as server:
        wait_for(lambda: server.noted("done"))  # 8 run at once
        assert server.end() == 0
        assert len(server.noted("done")) < len(names)
    with program(kind, nsqd, tmp_path) as server:
        wait_for(lambda: len(server.noted("done")) == len(names))
        wait_for(lambda: not nsqd.topic(TOPIC).channels["dramatiq"].left)
        assert sorted(server.noted("done")) == sorted(names)
        assert server.noted("began").count("0-fail") == 3
    assert [letter.reason for letter in dead_letters(nsqd)] == ["ValueError: 0-fail"]
