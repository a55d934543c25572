"""Kombu's connections on NSQ, and Celery's workers with each kind of pool."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gevent
import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError

from gnsq_like.contrib import celery
from gnsq_like.contrib.celery import nsq_name
from gnsq_like.deadletter import open_envelope
from gnsq_like.errors import ConnectionFailed, InvalidBody, InvalidOption, NSQError
from gnsq_like.testing import RunningNsqd, running_nsqd, running_nsqlookupd
from tests.support.daemons import delete_topics, wait_for
from tests.support.pages import page
from tests.support.peer import Peer, ScriptedNsqd, scripted_nsqd
from tests.support.web import Server

#: Our nsqd, and NSQ's own where it is on PATH.
KINDS = ["thread", pytest.param("real", marks=pytest.mark.real_nsqd)]
JOBS = Queue("jobs", Exchange("jobs"), routing_key="jobs")


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[RunningNsqd]:
    with running_nsqd(msg_timeout=getattr(request, "param", 60)) as running:
        yield running


@pytest.fixture
def nsqd(shared: RunningNsqd) -> RunningNsqd:
    delete_topics(shared.http_address)
    return shared


@contextmanager
def connected(nsqd: RunningNsqd, **options: Any) -> Iterator[Any]:
    options = {"nsqd_http_addresses": nsqd.http_address, **options}
    with Connection(f"nsq://{nsqd.tcp_address}", transport_options=options) as connection:
        yield connection


class Taken:
    """A consumer that keeps what it gets."""

    def __init__(self, connection: Any, *queues: Any, no_ack: bool = False, prefetch: int = 0) -> None:
        self.messages: list[Any] = []
        self._connection = connection
        self.consumer = Consumer(
            connection.channel(),
            queues,
            no_ack=no_ack,
            prefetch_count=prefetch or None,
            callbacks=[lambda body, message: self.messages.append(message)],
        )
        self.consumer.consume()

    def wait(self, count: int) -> list[Any]:
        """The messages, when there are so many."""
        while len(self.messages) < count:
            self._connection.drain_events(timeout=60)
        return self.messages


def publish(connection: Any, body: object, queue: Any = JOBS, **options: Any) -> None:
    connection.Producer().publish(
        body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
    )


def left(nsqd: RunningNsqd, topic: str = "jobs") -> int:
    return nsqd.topic(topic).channels["celery"].left


def test_messages_are_acknowledged_rejected_and_requeued(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        for number in range(3):
            publish(connection, number)
        taken = Taken(connection, JOBS)
        by_body = {message.decode(): message for message in taken.wait(3)}
        assert sorted(by_body) == [0, 1, 2]
        by_body[0].ack()
        by_body[1].reject()
        by_body[2].requeue()
        again = taken.wait(4)[-1]
        assert (again.decode(), again.delivery_info["redelivered"]) == (2, True)
        again.ack()
        wait_for(lambda: not left(nsqd))
    [letter] = [open_envelope(message.body) for message in nsqd.messages("jobs.dead", "c", 1)]
    assert letter.reason == "rejected"


def test_without_acknowledgements_a_message_is_finished_at_once(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        publish(connection, "x")
        Taken(connection, JOBS, no_ack=True).wait(1)
        wait_for(lambda: not left(nsqd))


def test_what_is_not_answered_comes_to_the_next_connection(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        publish(connection, "x")
        Taken(connection, JOBS).wait(1)
    with connected(nsqd) as connection:
        [message] = Taken(connection, JOBS).wait(1)
        assert message.decode() == "x"
        message.ack()


def test_the_prefetch_count_limits_what_is_in_flight(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        for number in range(5):
            publish(connection, number)
        taken = Taken(connection, JOBS, prefetch=2)
        taken.wait(2)
        wait_for(lambda: nsqd.topic("jobs").channels["celery"].in_flight == 2)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        taken.consumer.qos(prefetch_count=5)
        for message in taken.wait(5):
            message.ack()


@pytest.mark.parametrize("most", [3600.0, 0.2])
def test_an_eta_may_be_later_than_nsqd_defers(nsqd: RunningNsqd, most: float) -> None:
    at = datetime.now(UTC) + timedelta(seconds=0.7)
    with connected(nsqd, max_defer=most) as connection:
        publish(connection, "x", headers={"eta": at.isoformat()})
        [message] = Taken(connection, JOBS).wait(1)
        assert datetime.now(UTC) >= at - timedelta(milliseconds=2)
        message.ack()


def test_a_fanout_exchange_reaches_all_queues(nsqd: RunningNsqd) -> None:
    exchange = Exchange("news", type="fanout")
    queues = [Queue(f"reader-{number}", exchange) for number in range(2)]
    with connected(nsqd) as connection:
        everybody = [Taken(connection, queue) for queue in queues]
        wait_for(lambda: len(nsqd.topic("news#ephemeral").channels) == 2)
        publish(connection, "x", queues[0])
        while not all(taken.messages for taken in everybody):
            connection.drain_events(timeout=60)
        assert [[message.decode() for message in taken.messages] for taken in everybody] == [["x"], ["x"]]


def test_what_a_fanout_exchange_got_earlier_is_not_for_new_queues(
    nsqd: RunningNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqd's topic keeps it until there is a channel: an old request to shut down would end each new worker."""
    monkeypatch.setattr(celery, "_EARLIER", 0.0)
    news = Queue("reader", Exchange("news", type="fanout"))
    with connected(nsqd) as connection:
        publish(connection, "old", news)
        taken = Taken(connection, news)
        wait_for(lambda: "reader#ephemeral" in nsqd.topic("news#ephemeral").channels)
        publish(connection, "new", news)
        assert [message.decode() for message in taken.wait(1)] == ["new"]


def test_what_is_not_kombus_is_a_dead_letter(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        nsqd.publish("jobs", b"[]")
        publish(connection, "x")
        Taken(connection, JOBS).wait(1)[0].ack()
    [letter] = [open_envelope(message.body) for message in nsqd.messages("jobs.dead", "c", 1)]
    assert (letter.reason, letter.body) == ("not a message of kombu's: the message: expected dict, not list", b"[]")


def test_queues_are_counted_and_purged(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        for number in range(3):
            publish(connection, number)
        channel = connection.channel()
        assert channel.queue_declare("jobs", passive=True).message_count == 3
        assert channel.queue_declare("jobs").message_count == 0  # asks nobody
        assert channel.queue_purge("jobs") == 3
        assert channel.queue_declare("jobs", passive=True).message_count == 0
    with connected(nsqd, nsqd_http_addresses=()) as connection, pytest.raises(InvalidOption):
        connection.channel().queue_purge("jobs")


@contextmanager
def dead_daemon(is_silent: bool) -> Iterator[str]:
    """The address of a daemon that refuses connections, or accepts them and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if not is_silent:
            listener.close()
        yield f"127.0.0.1:{listener.getsockname()[1] if is_silent else 1}"


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
@pytest.mark.parametrize("dead", ["nsqd", "lookupd"])
def test_publishing_and_consuming_need_no_http(nsqd: RunningNsqd, dead: str, is_silent: bool) -> None:
    """Declaring is part of both. A dead daemon is missed by those who purge, or wait until a queue is empty."""
    with ExitStack() as stack:
        address = stack.enter_context(dead_daemon(is_silent))
        if dead == "nsqd":
            options: dict[str, Any] = {"nsqd_http_addresses": [nsqd.http_address, address]}
        else:
            lookupd = stack.enter_context(running_nsqlookupd())
            options = {"lookupd_http_addresses": [lookupd.http_address, address]}
            stack.enter_context(running_nsqd(lookupds=lookupd)).publish("jobs", of_kombu("other"))
        with connected(nsqd, **options) as connection:
            publish(connection, "x")
            Taken(connection, JOBS).wait(1)
            channel = connection.channel()
            wait_for(lambda: channel.queue_declare("jobs", passive=True).message_count)
            if not is_silent:  # or this waits for its answer
                with pytest.raises(NSQError):
                    channel.queue_purge("jobs")
                with pytest.raises(NSQError):
                    channel.queue_purge("nowhere")


def test_a_passive_declaration_without_any_answer_counts_nothing(nsqd: RunningNsqd) -> None:
    with dead_daemon(is_silent=True) as silent, connected(nsqd, nsqd_http_addresses=silent) as connection:
        publish(connection, "x")
        assert connection.channel().queue_declare("jobs", passive=True).message_count == 0


def test_what_nsq_does_not_have_is_refused(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        with pytest.raises(OperationalError, match="no priorities"):
            publish(connection, "x", priority=3)
        with pytest.raises(NotImplementedError, match="basic_get"):
            connection.channel().basic_get("jobs")
    nowhere = Connection("nsq://127.0.0.1:1", transport_options={"producer": {"timeout": 0.1}})
    with nowhere as connection, pytest.raises(OperationalError):
        publish(connection, "x", retry=False)


def test_a_publish_on_a_closed_channel_is_made_on_another_one(nsqd: RunningNsqd) -> None:
    with connected(nsqd) as connection:
        for retry in (False, True):
            producer = connection.Producer()
            producer.channel.close()
            if retry:
                producer.publish("x", routing_key="jobs", retry=True)
            else:
                with pytest.raises(OperationalError, match="closed"):
                    producer.publish("x", routing_key="jobs")
        [message] = Taken(connection, JOBS).wait(1)
        message.ack()


def drain_until(connection: Any, nsqd: RunningNsqd, **counts: int) -> None:
    """Until the channel of the queue has these counts, for a message that reaches no consumer."""

    def is_there() -> bool:
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        channel = nsqd.topic("jobs").channels.get("celery")
        return {name: getattr(channel, name, -1) for name in counts} == counts

    wait_for(is_there)


def test_a_task_may_be_as_large_as_the_page_says(nsqd: RunningNsqd) -> None:
    [largest] = re.findall(r"leaves (\d+) kB of nsqd's 1 MiB", page("jobs.rst"))
    with connected(nsqd) as connection:
        publish(connection, "x" * int(largest) * 1000)
        [message] = Taken(connection, JOBS).wait(1)
        assert message.decode() == "x" * int(largest) * 1000
        message.ack()
        with pytest.raises(InvalidBody, match="limit of 1048576"):
            publish(connection, "x" * (int(largest) + 10) * 1000)


@pytest.mark.parametrize(("size", "left"), [(1000, 0), (10, 1)], ids=["without envelope", "not at all"])
def test_a_dead_letter_may_be_larger_than_nsqd_takes(size: int, left: int) -> None:
    """The Producer has another nsqd than the queue. What cannot be stored is requeued with a delay."""
    with running_nsqd() as nsqd, running_nsqd(max_msg_size=size) as other:
        with connected(nsqd, producer={"nsqd_tcp_addresses": other.tcp_address}) as connection:
            Taken(connection, JOBS)
            nsqd.publish("jobs", b"x" * 900)
            drain_until(connection, nsqd, messages=1, deferred=left, left=left)
        if not left:
            assert [message.body for message in other.messages("jobs.dead", "c", 1)] == [b"x" * 900]


def test_an_early_task_that_cannot_be_published_again_is_requeued_with_a_delay(nsqd: RunningNsqd) -> None:
    eta = (datetime.now(UTC) + timedelta(seconds=100)).isoformat()
    with (
        running_nsqd(max_msg_size=10) as other,
        connected(nsqd, producer={"nsqd_tcp_addresses": other.tcp_address}) as connection,
    ):
        Taken(connection, JOBS)
        nsqd.publish("jobs", of_kombu(headers={"eta": eta}))
        drain_until(connection, nsqd, messages=1, deferred=1, left=1)


def test_the_dead_letters_of_a_long_name(nsqd: RunningNsqd) -> None:
    queue = Queue("q" * 60, Exchange("q"), routing_key="q")
    with connected(nsqd) as connection:
        publish(connection, "x", queue)
        Taken(connection, queue).wait(1)[0].reject()
        [letter] = nsqd.messages(nsq_name(f"{queue.name}.dead"), "c", 1)
        assert open_envelope(letter.body).topic == queue.name


# -- what a scripted nsqd sees --------------------------------------------------------------------------------


def of_kombu(tag: Any = "tag", info: Any = None, body_encoding: Any = None, **fields: Any) -> bytes:
    """A message as kombu makes it."""
    properties = {"delivery_tag": tag, "delivery_info": info or {"exchange": "jobs", "routing_key": "jobs"}}
    if body_encoding is not None:
        properties["body_encoding"] = body_encoding
    return json.dumps({"body": '"x"', "content-type": "application/json", "properties": properties, **fields}).encode()


class Scripted:
    """Kombu works in a thread, because it blocks; the scripted nsqd works here."""

    def __init__(self, nsqd: ScriptedNsqd) -> None:
        self.nsqd = nsqd
        self.connection: Any = Connection(f"nsq://{nsqd.address}")

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return gevent.get_hub().threadpool.apply(function, args, kwargs)

    def consume(self, *queues: Any, prefetch: int = 10) -> Taken:
        taken: Taken = self.run(Taken, self.connection, *queues, prefetch=prefetch)
        return taken


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with scripted_nsqd() as nsqd:
        made = Scripted(nsqd)
        yield made
        nsqd.close()
        made.run(made.connection.release)


def answers(peer: Peer, count: int) -> list[bytes]:
    """The next FINs and REQs."""
    found: list[bytes] = []
    while len(found) < count:
        line = peer.line()
        if line.startswith((b"FIN", b"REQ")):
            found.append(line)
    return found


#: Messages that kombu could not read, and why, as their dead letters say.
UNREADABLE = {
    "no JSON": (b"{", "not a message of kombu's: Expecting property name"),
    "a list": (b"[]", "not a message of kombu's: the message: expected dict, not list"),
    "nested too deeply": (b"[" * 100_000, "not a message of kombu's: maximum recursion depth exceeded"),
    "properties": (of_kombu(properties=[1]), "not a message of kombu's: properties: expected dict, not list"),
    "no tag": (of_kombu(properties={}), "not a message of kombu's: delivery_tag: expected str, not NoneType"),
    "tag": (of_kombu(tag=[1]), "not a message of kombu's: delivery_tag: expected str, not list"),
    "info": (of_kombu(info=[1]), "not a message of kombu's: delivery_info: expected dict, not list"),
    "body_encoding": (of_kombu(body_encoding=5), "not a message of kombu's: body_encoding: expected str, not int"),
    "headers": (of_kombu(headers=[1]), "not a message of kombu's: headers: expected dict, not list"),
    "eta": (of_kombu(headers={"eta": "soon"}), "not a message of kombu's: Invalid isoformat string"),
    "eta of another type": (of_kombu(headers={"eta": 5}), "not a message of kombu's: eta: expected str, not int"),
    "timelimit": (of_kombu(headers={"timelimit": ["x"]}), "not a message of kombu's: timelimit: expected int, not str"),
    "unknown body_encoding": (of_kombu(body_encoding="rot13"), "AttributeError: "),
    "body": (of_kombu(body_encoding="base64", body=5), "TypeError: "),
    "compression": (of_kombu(headers={"compression": "x"}), "KeyError: 'x'"),
    "content": (of_kombu(body="{"), "DecodeError: "),
}
#: The same of Celery's worker.
NO_TASKS = {
    "task": (of_kombu(headers={"task": [1], "id": "x"}), "TypeError: "),
    "id": (of_kombu(headers={"task": "tests.contrib.celery_app.job"}), "KeyError: 'id'"),
}


def letters_of(nsqd: RunningNsqd, queue: str, bodies: Iterable[bytes]) -> list[str]:
    """The reasons of the dead letters of these messages, in that order."""
    wanted = list(bodies)
    letters = [open_envelope(message.body) for message in nsqd.messages(f"{queue}.dead", "c", len(wanted))]
    reasons = {letter.body: letter.reason for letter in letters}
    return [reasons[body] for body in wanted]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("no_ack", [False, True])
def test_an_unreadable_message_is_a_dead_letter(kind: Any, no_ack: bool) -> None:
    """It leaves the consumer alive, however the message is to be answered."""
    with running_nsqd(kind=kind) as nsqd, connected(nsqd) as connection:
        taken = Taken(connection, JOBS, no_ack=no_ack)
        taken.consumer.register_callback(lambda body, message: None if no_ack else message.ack())
        for body, _ in UNREADABLE.values():
            nsqd.publish("jobs", body)
        nsqd.publish("jobs", of_kombu("good"))
        taken.wait(1)
        found = letters_of(nsqd, "jobs", [body for body, _ in UNREADABLE.values()])
        for reason, (_, expected) in zip(found, UNREADABLE.values(), strict=True):
            assert reason.startswith(expected)
        wait_for(lambda: not left(nsqd))


def test_an_unreadable_body_that_a_consumer_acknowledges_is_a_dead_letter(nsqd: RunningNsqd) -> None:
    """As Celery's worker does. Requeued ones come again."""
    answers = ["requeue", "ack"]
    with connected(nsqd) as connection:
        taken = Taken(connection, JOBS)
        taken.consumer.on_decode_error = lambda message, error: getattr(message, answers.pop(0))()
        nsqd.publish("jobs", of_kombu(body="{"))
        while answers:
            connection.drain_events(timeout=60)
        [reason] = letters_of(nsqd, "jobs", [of_kombu(body="{")])
    assert reason.startswith("DecodeError: ")


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_that_raises_makes_a_dead_letter(
    nsqd: RunningNsqd, no_ack: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """But not of what it has answered itself; and an error of the connection is kombu's."""
    errors = [OperationalError("gone"), ValueError("never"), RuntimeError("answered")]

    def fail(body: Any, message: Any) -> None:
        if len(errors) == 1 and not no_ack:
            message.ack()
        raise errors.pop(0)

    with connected(nsqd) as connection:
        Taken(connection, JOBS, no_ack=no_ack).consumer.register_callback(fail)
        nsqd.publish("jobs", of_kombu())
        with pytest.raises(OperationalError, match="gone"):
            connection.drain_events(timeout=60)
    with connected(nsqd) as connection:
        Taken(connection, JOBS, no_ack=no_ack).consumer.register_callback(fail)
        drain_until(connection, nsqd, left=0)
        nsqd.publish("jobs", of_kombu("other"))
        drain_until(connection, nsqd, messages=2, left=0)
        reasons = letters_of(nsqd, "jobs", [of_kombu(), *([of_kombu("other")] if no_ack else [])])
    assert reasons == ["ValueError: never", *(["RuntimeError: answered"] if no_ack else [])]
    assert [record.exc_info is not None for record in caplog.records if record.name == celery.__name__] == [True] * 2


FIRST, SECOND = b"0" * 16, b"1" * 16


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("ack", [b"FIN " + FIRST, b"FIN " + SECOND]), ("requeue", [b"REQ " + FIRST + b" 0", b"REQ " + SECOND + b" 0"])],
)
def test_all_deliveries_of_one_tag_are_answered(scripted: Scripted, answer: str, expected: list[bytes]) -> None:
    """The tag is made by the sender: a message that is delivered again has the same."""
    taken = scripted.consume(JOBS)
    peer = scripted.nsqd.accept()
    peer.subscribe()
    peer.messages(FIRST, SECOND, body=of_kombu())
    messages = scripted.run(taken.wait, 2)
    scripted.run(getattr(messages[1], answer))
    assert answers(peer, 2) == expected
    peer.messages(b"2" * 16, body=of_kombu("other"))
    scripted.run(scripted.run(taken.wait, 3)[-1].ack)
    assert answers(peer, 1) == [b"FIN " + b"2" * 16]


def test_a_message_that_is_held_for_long_is_touched(scripted: Scripted) -> None:
    taken = scripted.consume(JOBS)
    peer = scripted.nsqd.accept()
    peer.subscribe(msg_timeout=4000)
    peer.messages(FIRST, body=of_kombu())
    [message] = scripted.run(taken.wait, 1)
    while peer.line() != b"TOUCH " + FIRST:
        pass
    scripted.run(message.ack)
    assert answers(peer, 1) == [b"FIN " + FIRST]


def test_copies_of_a_fanout_exchange_on_one_channel_are_all_answered(nsqd: RunningNsqd) -> None:
    exchange = Exchange("news", type="fanout")
    queues = [Queue(f"reader-{number}", exchange) for number in range(2)]
    with connected(nsqd) as connection:
        taken = Taken(connection, *queues)
        wait_for(lambda: len(nsqd.topic("news#ephemeral").channels) == 2)
        publish(connection, "x", queues[0])
        for message in taken.wait(2):
            message.ack()
        for queue in queues:
            nsqd.wait_until("news#ephemeral", f"{queue.name}#ephemeral", messages=1, left=0)


def test_an_overdue_message_that_no_worker_has_begun_gives_its_place_back(scripted: Scripted) -> None:
    scripted.consume(JOBS)
    peer = scripted.nsqd.accept()
    peer.subscribe(msg_timeout=100, max_msg_timeout=100)
    peer.messages(FIRST, body=of_kombu())
    inbox = scripted.connection.transport.inbox
    waiting = scripted.run(inbox.get)
    scripted.run(wait_for, lambda: waiting[-1].is_lost)
    inbox.put(waiting)
    with pytest.raises(TimeoutError):
        scripted.run(scripted.connection.drain_events, timeout=0.01)
    assert answers(peer, 1) == [b"REQ " + FIRST + b" 0"]


def test_a_cancelled_consumer_hands_back_what_waits_for_it(scripted: Scripted) -> None:
    """At once; what is not answered can be answered later."""
    taken = scripted.consume(JOBS)
    peer = scripted.nsqd.accept()
    peer.subscribe()
    peer.messages(FIRST, body=of_kombu())
    [message] = scripted.run(taken.wait, 1)
    peer.messages(SECOND, body=of_kombu("other"))
    inbox = scripted.connection.transport.inbox
    inbox.put(scripted.run(inbox.get))
    scripted.run(taken.consumer.cancel)
    assert answers(peer, 1) == [b"REQ " + SECOND + b" 0"]
    scripted.run(message.ack)
    assert answers(peer, 1) == [b"FIN " + FIRST]


@pytest.mark.parametrize("when", ["taken", "in the inbox"])
def test_a_closed_channel_takes_nothing_more_before_it_hands_back(scripted: Scripted, when: str) -> None:
    """Even what would otherwise be a dead letter; kombu's closed channels have no connection to publish it."""
    taken = scripted.consume(JOBS)
    peer = scripted.nsqd.accept()
    peer.subscribe()
    peer.messages(FIRST, body=of_kombu() if when == "taken" else b"not a message")
    inbox = scripted.connection.transport.inbox
    if when == "taken":
        scripted.run(taken.wait, 1)
    else:
        inbox.put(scripted.run(inbox.get))
    scripted.run(taken.consumer.channel.close)
    with pytest.raises(TimeoutError):
        scripted.run(scripted.connection.drain_events, timeout=0.01)
    lines = [peer.line()]
    while not lines[-1].startswith(b"REQ"):
        lines.append(peer.line())
    assert lines[-1] == b"REQ " + FIRST + b" 0"
    assert [line for line in lines if line.startswith(b"RDY")][-1] == b"RDY 0"


def test_messages_come_through_a_loop_of_kombus(nsqd: RunningNsqd) -> None:
    with closing(Hub()) as loop, connected(nsqd) as connection:
        taken = Taken(connection, JOBS)
        connection.register_with_event_loop(loop)
        for number in range(3):
            publish(connection, number)
        while len(taken.messages) < 3:
            next(loop.loop)
        for message in taken.messages:
            message.ack()
        wait_for(lambda: not left(nsqd))
        connection.close()
        assert not loop.readers


def test_a_refused_queue_is_an_error_of_the_loop(scripted: Scripted, request: pytest.FixtureRequest) -> None:
    loop = Hub()
    request.addfinalizer(loop.close)
    loop.propagate_errors = scripted.connection.connection_errors
    taken = scripted.consume(JOBS)
    other = scripted.nsqd.accept()
    other.identify()
    assert other.line() == b"SUB jobs celery"
    other.error("E_UNAUTHORIZED AUTH failed for SUB")
    assert scripted.run(taken.consumer.channel.readers["jobs"].wait, 60)
    scripted.connection.register_with_event_loop(loop)

    def turn() -> None:
        while True:
            next(loop.loop)

    with pytest.raises(ConnectionFailed, match="E_UNAUTHORIZED"):
        scripted.run(turn)


def test_a_refused_queue_is_an_error_of_the_connection(scripted: Scripted) -> None:
    """Celery then makes a new one, which gets all unanswered messages again: so not while there are any."""
    taken = scripted.consume(JOBS)
    peer = scripted.nsqd.accept()
    peer.subscribe()
    refused = scripted.consume(Queue("refused", Exchange("refused"), routing_key="refused"))
    other = scripted.nsqd.accept()
    other.identify()
    assert other.line() == b"SUB refused celery"
    other.error("E_UNAUTHORIZED AUTH failed for SUB")
    assert scripted.run(refused.consumer.channel.readers["refused"].wait, 60)
    peer.messages(FIRST, body=of_kombu())
    [message] = scripted.run(taken.wait, 1)
    with pytest.raises(TimeoutError):
        scripted.run(scripted.connection.drain_events, timeout=0.01)
    scripted.run(message.ack)
    assert answers(peer, 1) == [b"FIN " + FIRST]
    with pytest.raises(ConnectionFailed, match="E_UNAUTHORIZED") as caught:
        scripted.run(scripted.connection.drain_events)  # without a timeout
    assert isinstance(caught.value, scripted.connection.connection_errors)


def test_names() -> None:
    assert nsq_name("celery") == "celery"
    assert nsq_name("celery.pidbox", ephemeral=True) == "celery.pidbox#ephemeral"
    for name in ("a@b", "x" * 65):
        assert len(nsq_name(name, ephemeral=True)) <= 64
    assert nsq_name("a@b") != nsq_name("a-b")


# -- Celery's workers ----------------------------------------------------------------------------------------

POOLS = ["prefork", "threads", "gevent"]


@contextmanager
def worker(pool: str, nsqd: RunningNsqd, directory: Path) -> Iterator[Server]:
    command = ["-m", "celery", "-A", "tests.contrib.celery_app", "worker", "-P", pool, "-c", "4", "-l", "INFO"]
    server = Server(command, directory, NSQD=nsqd.tcp_address)
    try:
        wait_for(lambda: server.noted("ready") or server.process.poll() is not None)
        assert server.process.poll() is None, server.log
        yield server
    finally:
        if server.process.poll() is None:
            server.end()


@pytest.fixture
def send(nsqd: RunningNsqd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sends a task; ``send.app`` is the application."""
    from celery import Celery

    with Celery("sender", broker=f"nsq://{nsqd.tcp_address}", set_as_current=False) as app:

        def send(name: str) -> None:
            app.send_task("tests.contrib.celery_app.job", (name,))

        send.app = app  # type: ignore[attr-defined]
        yield send


@pytest.mark.servers
@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_runs_retries_and_answers_and_when_stopped_hands_back_the_rest(
    pool: str, nsqd: RunningNsqd, send: Any, tmp_path: Path
) -> None:
    """Each task runs once, in this worker or in the next one; how many here is the pool's decision."""
    names = [f"0-{number}" for number in range(50)]
    waiting = [f"gate-{number}" for number in range(8)]
    with worker(pool, nsqd, tmp_path) as server:
        for name in [*names, "0-fail"]:
            send(name)
        wait_for(lambda: {*server.noted("done")} == {*names})
        wait_for(lambda: server.noted("began").count("0-fail") == 3)
        wait_for(lambda: not left(nsqd, "celery"))
        assert [[*each.values()] for each in send.app.control.ping(timeout=60, limit=1)] == [[{"ok": "pong"}]]
        for name in waiting:
            send(name)
        wait_for(lambda: len({*waiting} & {*server.noted("began")}) == 4)
        nsqd.wait_until("celery", "celery", in_flight=8)
        server.process.terminate()
        wait_for(lambda: "Warm shutdown" in server.log)
        server.open_gate()
        assert server.wait_for_end() == 0
    with worker(pool, nsqd, tmp_path) as server:
        wait_for(lambda: {*server.noted("done")} == {*names, *waiting})
        wait_for(lambda: not left(nsqd, "celery"))
        assert sorted(server.noted("began")) == sorted([*names, *waiting, *["0-fail"] * 3])


@pytest.mark.servers
@pytest.mark.parametrize(
    ("pool", "kind"),
    [*((pool, "thread") for pool in POOLS), pytest.param("threads", "real", marks=pytest.mark.real_nsqd)],
)
def test_malformed_tasks_leave_a_worker_alive(pool: str, kind: Any, tmp_path: Path) -> None:
    variants = {**UNREADABLE, **NO_TASKS}
    with running_nsqd(kind=kind, msg_timeout=60) as nsqd, worker(pool, nsqd, tmp_path) as server:
        for body, _ in variants.values():
            nsqd.publish("celery", body)
        found = letters_of(nsqd, "celery", [body for body, _ in variants.values()])
        for reason, (_, expected) in zip(found, variants.values(), strict=True):
            assert reason.startswith(expected)
        task = {"task": "tests.contrib.celery_app.job", "id": "x"}
        nsqd.publish("celery", of_kombu(headers=task, body='[["0-good"], {}, {}]'))
        wait_for(lambda: server.noted("done") == ["0-good"])
        wait_for(lambda: not left(nsqd, "celery"))


@pytest.mark.servers
def test_idle_children_that_are_killed_are_replaced(nsqd: RunningNsqd, send: Any, tmp_path: Path) -> None:
    """Without a loop the next ones would wait for ever for a lock that one of these holds."""
    with worker("prefork", nsqd, tmp_path) as server:
        parent = server.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert len(children) == 4
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        for number in range(8):
            send(f"0-{number}")
        wait_for(lambda: len(server.noted("done")) == 8)


@pytest.mark.parametrize("shared", [2], indirect=True, ids=["2 s"])  # after which nsqd delivers its tasks again
@pytest.mark.servers
@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_is_killed_loses_no_task(pool: str, nsqd: RunningNsqd, send: Any, tmp_path: Path) -> None:
    """With late acknowledgements; prefork has a child killed, the others have one process."""
    names = [f"0.01-{number}" for number in range(50)]
    with worker(pool, nsqd, tmp_path) as server:
        for name in ["gate-first", *names]:
            send(name)
        wait_for(lambda: "gate-first" in server.noted("began"))
        [pid] = {note.pid for note in server.notes if note.name == "gate-first"}
        os.kill(int(pid), signal.SIGKILL)
        server.open_gate()
        if pool != "prefork":
            server.wait_for_end()
            with worker(pool, nsqd, tmp_path) as server:
                wait_for(lambda: {*server.noted("done")} == {"gate-first", *names})
        wait_for(lambda: {*server.noted("done")} == {"gate-first", *names})
        wait_for(lambda: not left(nsqd, "celery"))
