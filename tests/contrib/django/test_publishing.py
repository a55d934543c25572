"""publish: which messages are sent, and when."""

import datetime
import decimal
import json
import threading
import uuid

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.test import override_settings

from gnsq_like import Reader, Requeue
from gnsq_like.contrib import django as nsq
from gnsq_like.contrib.django import multi_publish, producer, publish
from gnsq_like.contrib.django.testing import recording
from gnsq_like.deadletter import ToTopic
from gnsq_like.errors import InvalidBody, InvalidName, InvalidOption, NotSent
from tests.support.daemons import KINDS, running_nsqd, wait_for
from tests.support.django_project import recorded
from tests.support.patient import NsqdHTTPClient
from tests.support.scripts import run_script
from tests.support.web import PATIENT


@pytest.fixture(params=KINDS)
def nsqd(request):
    with (
        running_nsqd(request.param) as daemon,
        override_settings(NSQ={"NSQD_TCP_ADDRESSES": daemon.tcp_address, **PATIENT}),
    ):
        yield daemon


@pytest.fixture(autouse=True)
def no_database_connection_is_left():
    yield
    connections.close_all()


def held(nsqd, topic="orders"):
    """How many messages nsqd has of a topic."""
    with NsqdHTTPClient(nsqd.http_address) as client:
        return sum(each["message_count"] for each in client.stats(topic=topic)["topics"])


def test_outside_of_a_transaction_it_is_sent_at_once(nsqd):
    publish("orders", b"x")
    assert held(nsqd) == 1


def test_without_a_transaction_the_database_is_left_alone(nsqd):
    def work():
        publish("orders", b"x")
        found.append(connections["default"].connection)

    found: list[object] = []
    thread = threading.Thread(target=work)  # has no connection yet
    thread.start()
    wait_for(lambda: found)
    thread.join()
    assert found == [None]


def test_with_a_connection_and_no_transaction_it_is_sent_at_once(nsqd):
    connections["default"].ensure_connection()
    publish("orders", b"x")
    assert held(nsqd) == 1


@pytest.mark.parametrize("durable", [False, True])
def test_in_a_transaction_it_is_sent_after_the_commit(nsqd, durable):
    with transaction.atomic(durable=durable):
        with transaction.atomic():
            publish("orders", b"x")
            multi_publish("orders", [b"y", b"z"])
        assert held(nsqd) == 0
    assert held(nsqd) == 3


def test_a_transaction_that_rolls_back_publishes_nothing(nsqd):
    def fail():
        with transaction.atomic():
            publish("orders", b"x")
            raise RuntimeError("meant")

    with pytest.raises(RuntimeError, match="meant"):
        fail()
    with transaction.atomic():
        with pytest.raises(RuntimeError, match="meant"):
            fail()
        publish("orders", b"y")
    assert held(nsqd) == 1


def test_an_asynchronous_view_calls_it_as_it_calls_the_database():
    @sync_to_async
    def save(fails):
        with transaction.atomic():
            publish("orders", b"x")
            transaction.set_rollback(fails)

    async def view():
        await save(fails=False)
        await save(fails=True)
        await sync_to_async(publish)("orders", b"y")

    # A process: the event loop blocks this thread and its hub.
    with running_nsqd("process") as nsqd:
        with override_settings(NSQ={"NSQD_TCP_ADDRESSES": nsqd.tcp_address, **PATIENT}):
            async_to_sync(view)()
        assert held(nsqd) == 2


def test_on_commit_may_be_left_out(nsqd):
    with transaction.atomic():
        publish("orders", b"x", on_commit=False)
        assert held(nsqd) == 1
        transaction.set_rollback(True)
    assert held(nsqd) == 1


def test_the_transaction_of_one_of_several_databases(nsqd):
    with transaction.atomic(using="other"):
        publish("orders", b"x")
        assert held(nsqd) == 1
        publish("orders", b"x", using="other")
        assert held(nsqd) == 1
    assert held(nsqd) == 2


def test_dead_letters_go_through_the_module(nsqd):
    def fail(message):
        raise Requeue(delay=0, backoff=False)

    publish("orders", b"x")
    with Reader(
        "orders",
        "c",
        fail,
        nsqd_tcp_addresses=nsqd.tcp_address,
        max_attempts=1,
        on_giving_up=ToTopic(nsq, "orders.dead"),
    ):
        wait_for(lambda: held(nsqd, "orders.dead") == 1, "the dead letter")


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("two words", b"x"), {}, InvalidName),
        (("orders", b""), {}, InvalidBody),
        (("orders", object()), {}, InvalidBody),
        (("orders", b"x"), {"defer": -1}, InvalidOption),
    ],
)
def test_a_wrong_argument_raises_in_the_transaction(nsqd, arguments, options, error):
    with transaction.atomic():
        with pytest.raises(error):
            publish(*arguments, **options)
        if not options:
            with pytest.raises(error):
                multi_publish(arguments[0], [arguments[1]])
    assert held(nsqd) == 0


def test_the_body_is_what_it_was_when_it_was_published(nsqd):
    bodies = []
    with Reader("orders", "c", lambda message: bodies.append(message.body), nsqd_tcp_addresses=nsqd.tcp_address):
        with transaction.atomic():
            order = {"id": 1}
            publish("orders", order)
            order["id"] = 2
        wait_for(lambda: bodies)
    assert bodies == [b'{"id":1}']


def test_objects_become_json_as_django_makes_it():
    number = uuid.uuid4()
    given = {"at": datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC), "price": decimal.Decimal("9.90"), "id": number}
    with recording() as outbox:
        publish("orders", given)
        publish("orders", "tëa")
        publish("orders", b"tea")
        publish("orders", [1], defer=2.5)
    assert outbox[0].json() == {"at": "2024-05-01T00:00:00Z", "price": "9.90", "id": str(number)}
    assert [each.body for each in outbox[1:]] == ['"tëa"'.encode(), b"tea", b"[1]"]
    assert [each.defer for each in outbox] == [None, None, None, 2.5]


def test_another_encoder():
    with override_settings(NSQ={"ENCODER": lambda value: repr(value).encode(), "RECORD": True}):
        publish("orders", {1: 2})
        assert [each.body for each in recorded()] == [b"{1: 2}"]


def test_all_threads_share_one_producer(nsqd):
    def work():
        publish("orders", b"x")
        made.append(producer())

    made = [producer()]
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(made) == 9)
    for thread in threads:
        thread.join()
    assert len(set(map(id, made))) == 1
    assert held(nsqd) == 8


def test_a_changed_setting_makes_another_producer(nsqd):
    publish("orders", b"x")
    before = producer()
    with override_settings(NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1", "TIMEOUT": 0.1}):
        with pytest.raises(NotSent):
            publish("orders", b"x")
        assert before.stats()["state"] == "closed"
    publish("orders", b"x")
    assert held(nsqd) == 2


def test_wrong_settings_say_so_at_the_first_publish():
    wrong = {"TIMEOUT": "soon", "NSQD_TCP_ADDRESSES": "127.0.0.1:4150"}
    with override_settings(NSQ=wrong), pytest.raises(ImproperlyConfigured, match=r'NSQ\["TIMEOUT"\]'):
        publish("orders", b"x")
    with override_settings(NSQ={}), pytest.raises(ImproperlyConfigured, match="NSQD_TCP_ADDRESSES"):
        publish("orders", b"x")
    with override_settings(NSQ=[]), pytest.raises(ImproperlyConfigured, match="dictionary"):
        publish("orders", b"x")


def test_recordings_may_be_nested():
    with recording() as outer:
        publish("orders", b"1")
        with recording() as inner:
            publish("orders", b"2")
        publish("orders", b"3")
    assert [each.body for each in outer] == [b"1", b"3"]
    assert [each.body for each in inner] == [b"2"]
    assert json.loads(outer[0].body) == 1


def test_the_metrics_are_made_once_whichever_of_many_threads_publishes_first() -> None:
    """Two registrations of the same names are an error: of the two first publishes at once, one failed with it."""
    lines = run_script(
        """
        import sys, threading
        import django
        from django.conf import settings

        settings.configure(NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1", "METRICS": True, "TRACING": True})
        django.setup()
        from gnsq_like.contrib.django import conf
        import gnsq_like.contrib.opentelemetry, gnsq_like.contrib.prometheus

        conf.settings()
        sys.setswitchinterval(1e-6)
        together = threading.Barrier(20)
        made = []

        def make():
            together.wait()
            made.append((conf.metrics(), conf.tracing()))

        threads = [threading.Thread(target=make) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(len(made), len(set(made)))
        """
    )
    assert lines == ["20 1"]
