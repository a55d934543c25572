"""The helpers for applications' tests, in test cases as applications have them."""

import io
import unittest

import pytest
from django.conf import settings
from django.core.cache import caches
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.test.runner import DiscoverRunner
from django.urls import get_urlconf, set_urlconf
from django.utils import timezone, translation

from gnsq_like.contrib.django import publish, reader, readers
from gnsq_like.contrib.django.testing import NSQTestMixin, deliver, recording
from gnsq_like.testing import Published
from tests.support.django_project import recorded


@pytest.fixture(autouse=True)
def nothing_declared():
    before, readers._all[:] = list(readers._all), []
    yield
    readers._all[:] = before


def run(case):
    """Run the test methods of a class; returns the failures by name."""
    databases = DiscoverRunner(verbosity=0).setup_databases(aliases={"default", "other"})
    try:
        suite = unittest.TestLoader().loadTestsFromTestCase(case)
        result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    finally:
        DiscoverRunner(verbosity=0).teardown_databases(databases)
    assert result.testsRun
    return {test._testMethodName: text for test, text in [*result.failures, *result.errors]}


def test_assertions():
    class Tests(NSQTestMixin, SimpleTestCase):
        def test_right(self):
            self.assertNothingPublished()
            publish("orders", {"id": 1, "item": "tea"})
            publish("orders", b"raw")
            [found] = self.assertPublished("orders", {"item": "tea", "id": 1})
            assert found.json()["id"] == 1
            self.assertPublished("orders", b"raw", count=1)
            self.assertPublished("orders", count=2)
            self.assertPublished("parcels", count=0)
            self.assertNothingPublished("parcels")

        def test_nothing(self):
            self.assertPublished("orders")

        def test_other_body(self):
            publish("orders", {"id": 1})
            self.assertPublished("orders", {"id": 2})

        def test_too_often(self):
            publish("orders", b"x")
            publish("orders", b"x")
            self.assertPublished("orders", b"x", count=1)

        def test_something(self):
            publish("orders", b"x")
            self.assertNothingPublished()

    failed = run(Tests)
    assert sorted(failed) == ["test_nothing", "test_other_body", "test_something", "test_too_often"]
    assert "nothing was published to 'orders'; to 'orders' was published\n  nothing" in failed["test_nothing"]
    assert """with the body {'id': 2}; to 'orders' was published\n  b'{"id":1}'""" in failed["test_other_body"]
    assert "2 and not 1 messages were published" in failed["test_too_often"]
    assert "1 messages were published: b'x' to 'orders'" in failed["test_something"]
    assert all("AssertionError" in text for text in failed.values())


def test_on_commit_in_a_test_case():
    class Tests(NSQTestMixin, TestCase):
        def test_captured(self):
            with self.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic():
                publish("orders", b"x")
                self.assertNothingPublished()
            assert len(callbacks) == 1
            self.assertPublished("orders", b"x", count=1)

        def test_not_executed(self):
            with self.captureOnCommitCallbacks() as callbacks:
                publish("orders", b"x")
            assert len(callbacks) == 1
            self.assertNothingPublished()

    assert run(Tests) == {}


def test_a_handler_may_ask_a_message_whatever_it_offers():
    seen: list[object] = []

    @reader("orders", "mail")
    def mail(message):
        seen.extend((message.data, message.is_lost, message.timeout_at > message.received_at))
        message.enable_async()
        message.touch_until_answered()
        message.fail(ValueError("no stamp"))
        seen.append(message.answer)

    class Tests(NSQTestMixin, SimpleTestCase):
        def test_all_of_it(self):
            publish("orders", b"x")
            self.deliver()

    assert run(Tests) == {}
    assert seen == [b"x", False, True, "REQ"]


def test_readers_are_called():
    calls: list[object] = []

    @reader("orders", "mail")
    def mail(message):
        calls.append((message.topic, message.channel, message.body, message.attempts))
        publish("mails", b"sent")

    @reader("orders", "books", batch={"size": 2})
    def books(messages):
        calls.append([message.body for message in messages])
        messages[0].touch()
        messages[0].requeue(5)

    @reader("mails", "count")
    def count(message):
        calls.append(message.body)
        return False

    class Tests(NSQTestMixin, SimpleTestCase):
        def test_each_channel_gets_each_message_once(self):
            for body in (b"1", b"2", b"3"):
                publish("orders", body)
            delivered = self.deliver("orders")
            assert [message.answer for message in delivered] == ["FIN", "FIN", "FIN", "REQ", "FIN", "REQ"]
            assert calls == [("orders", "mail", body, 1) for body in (b"1", b"2", b"3")] + [[b"1", b"2"], [b"3"]]
            calls.clear()
            assert [message.answer for message in self.deliver()] == ["REQ"] * 3
            assert calls == [b"sent"] * 3
            assert self.deliver() == []
            self.assertPublished("orders", count=3)

    assert run(Tests) == {}


def test_an_exception_of_a_handler_is_not_caught():
    @reader("orders", "mail")
    def mail(message):
        raise RuntimeError("meant")

    with recording() as outbox:
        publish("orders", b"x")
        with pytest.raises(RuntimeError, match="meant"):
            deliver(outbox)


def test_record_keeps_a_whole_process_from_sending():
    with override_settings(NSQ={"RECORD": True}):
        publish("orders", b"x")
        assert [(each.topic, each.body) for each in recorded()] == [("orders", b"x")]


def test_settings_may_change_while_publishes_are_recorded():
    class Tests(NSQTestMixin, SimpleTestCase):
        @override_settings(NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1", "TIMEOUT": 0.1})
        def test_decorated(self):
            publish("orders", b"x")
            self.assertPublished("orders", b"x", count=1)

        def test_inside(self):
            publish("orders", {"id": 1})
            with self.settings(NSQ={"ENCODER": lambda value: b"other"}):
                publish("orders", {"id": 1})
            publish("orders", {"id": 1})
            assert [each.body for each in self.published] == [b'{"id":1}', b"other", b'{"id":1}']

    assert run(Tests) == {}
    assert run(override_settings(NSQ={"MAX_MSG_BYTES": 100})(Tests)) == {}


def test_messages_published_before_the_tests_are_not_sent():
    class Tests(NSQTestMixin, TestCase):
        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            publish("orders", b"1", on_commit=False)

        @classmethod
        def setUpTestData(cls):
            publish("orders", b"2", on_commit=False)

        def test_nothing_of_it_is_seen(self):
            self.assertNothingPublished()
            publish("orders", b"3", on_commit=False)
            self.assertPublished("orders", b"3", count=1)

    # Nothing listens there, so sending would fail.
    with override_settings(NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1", "TIMEOUT": 0.1}):
        assert run(Tests) == {}


def test_commits_are_real_in_a_transaction_test_case():
    class Tests(NSQTestMixin, TransactionTestCase):
        def test_commit_and_rollback(self):
            with transaction.atomic(durable=True):
                publish("orders", b"x")
                self.assertNothingPublished()
                with transaction.atomic():
                    publish("orders", b"y")
                    transaction.set_rollback(True)
            assert [each.body for each in self.published] == [b"x"]

    assert run(Tests) == {}


def test_a_handler_leaves_nothing_of_django_behind(monkeypatch):
    """What a request's middleware and the end of a request would end: the thread is used again."""
    closed = []
    cache = caches["default"]
    monkeypatch.setattr(cache, "close", lambda **_: closed.append(True))

    @reader("orders", "language")
    def handle(message):
        translation.activate("de")
        timezone.activate("Europe/Berlin")
        set_urlconf("elsewhere")
        if message.body == b"fails":
            raise ValueError("fails")

    class Tests(NSQTestMixin, SimpleTestCase):
        def test(self):
            deliver([Published("orders", b"x", None)])
            with pytest.raises(ValueError, match="fails"):
                deliver([Published("orders", b"fails", None)])
            found = translation.get_language(), timezone.get_current_timezone_name(), get_urlconf()
            assert found == (settings.LANGUAGE_CODE, settings.TIME_ZONE, None)

    assert run(Tests) == {}
    assert len(closed) == 2
