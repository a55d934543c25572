"""Django's outbox: what it has beside what ``tests/contrib/shared/outbox/test_databases.py`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from gnsq_like import Message
from gnsq_like.contrib.django import publish
from gnsq_like.contrib.django.outbox import relaying
from gnsq_like.contrib.django.outbox.database import DjangoDatabase
from gnsq_like.contrib.django.outbox.models import OutboxMessage
from gnsq_like.contrib.django.testing import recording
from gnsq_like.contrib.opentelemetry import Tracing
from gnsq_like.contrib.outbox import Event
from gnsq_like.contrib.shared.envelope import unpack
from gnsq_like.contrib.shared.outbox.rows import Skipped
from gnsq_like.contrib.shared.outbox.store import SQLStore
from gnsq_like.errors import InvalidBody, InvalidName, InvalidOption
from gnsq_like.testing import RunningNsqd, running_nsqd
from tests.support.daemons import wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.postgres import migrated, on_postgres


@pytest.fixture(autouse=True)
def no_relay_is_left() -> Iterator[None]:
    """For what reports on this process."""
    yield
    relaying.made.clear()


@pytest.fixture
def nsqd() -> Iterator[RunningNsqd]:
    with running_nsqd() as daemon, override_settings(NSQ={"NSQD_TCP_ADDRESSES": daemon.tcp_address}):
        yield daemon


@pytest.fixture
def using(tmp_path: Path) -> Iterator[str]:
    """The alias of a database with an empty outbox."""
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "outbox.sqlite3"}
    with migrated("outbox", settings, "gnsq_like_outbox") as alias:
        yield alias


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "two words"}, InvalidName),
        ({"body": b""}, InvalidBody),
        ({"key": "a", "defer": 1}, InvalidOption),
        ({"defer": -1}, InvalidOption),
        ({"on_commit": False}, InvalidOption),
        ({"outbox": False, "key": "a"}, InvalidOption),
        ({"outbox": False, "envelope": True}, InvalidOption),
    ],
)
def test_what_is_wrong_is_raised_at_once(nsqd: RunningNsqd, using: str, arguments: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        publish(**{"topic": "orders", "body": b"x", "outbox": True, "using": using, **arguments})
    assert not OutboxMessage.objects.using(using).exists()


def test_without_its_app_there_is_no_outbox() -> None:
    with override_settings(INSTALLED_APPS=["gnsq_like.contrib.django"], NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1"}):
        with pytest.raises(ImproperlyConfigured, match=r"gnsq_like\.contrib\.django\.outbox"):
            publish("orders", b"x", outbox=True)
        with pytest.raises(ImproperlyConfigured, match=r"gnsq_like\.contrib\.django\.outbox"):
            relaying.make_relay()


def test_a_recording_has_what_committed(nsqd: RunningNsqd, using: str) -> None:
    with recording() as published:
        publish("orders", {"order": 1}, outbox=True, using=using)
        with transaction.atomic(using=using):
            publish("orders", {"order": 2}, outbox=True, using=using)
            transaction.set_rollback(True, using=using)
    assert [(each.topic, each.json()) for each in published] == [("orders", {"order": 1})]


def test_a_trace_goes_through_the_outbox(nsqd: RunningNsqd, using: str) -> None:
    """An envelope carries it too, and is left to the handler; other messages of the topic are opened for it."""
    settings = {"NSQD_TCP_ADDRESSES": nsqd.tcp_address, "TRACING": True, "CLOUD_EVENTS": ["orders"]}
    sender = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, False, TraceFlags(1))
    seen: list[tuple[bytes, int]] = []

    def handler(message: Message) -> None:
        seen.append((message.body, trace.get_current_span().get_span_context().trace_id))

    with override_settings(NSQ=settings):
        with trace.use_span(NonRecordingSpan(sender)):
            publish("orders", {"order": 1}, outbox=True, using=using)
            publish("orders", {"order": 2}, outbox=True, key="a", using=using)
        with NsqdHTTPClient(nsqd.http_address) as client:
            client.create_topic("orders")
            client.create_channel("orders", "traced")
        assert relaying.make_relay(using).run_once() == 2
        bodies = [bytes(row.body) for row in OutboxMessage.objects.using(using).order_by("pk")]
        for body in bodies:
            event = unpack(body)
            assert event is not None
            assert event.attributes["traceparent"] == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        addresses: Any = {"nsqd_tcp_addresses": nsqd.tcp_address, "max_in_flight": 1}
        # Without the SDK, OpenTelemetry passes traces on in its newer versions only.
        tracing = Tracing(tracer_provider=TracerProvider(), cloud_events=["orders"])
        with tracing.reader("orders", "traced", handler, **addresses):
            wait_for(lambda: len(seen) == 2, "the handler")
    assert [trace_id for _, trace_id in seen] == [sender.trace_id] * 2
    [plain] = [body for body, _ in seen if body not in bodies]
    assert plain == b'{"order":1}'
    [enveloped] = [body for body, _ in seen if body in bodies]
    assert Event.of(enveloped).data == {"order": 2}


def test_the_migration_is_complete() -> None:
    call_command("makemigrations", "gnsq_like_outbox", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize("vendor", ["sqlite", "postgresql"])
def test_unpublished_rows_are_found_by_an_index(request: pytest.FixtureRequest, tmp_path: Path, vendor: str) -> None:
    """Among many that are published: however large the table, a look at it stays cheap."""
    settings: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "outbox.sqlite3"}
    if vendor == "postgresql":
        settings = on_postgres(request.getfixturevalue("postgres"))
    with migrated("outbox", settings, "gnsq_like_outbox") as alias:
        published = timezone.now()
        OutboxMessage.objects.using(alias).bulk_create(
            OutboxMessage(topic="orders", shard=number % 17, body=b"x", published_at=published)
            for number in range(5000)
        )
        with connections[alias].cursor() as cursor:
            cursor.execute("ANALYZE")
        statement, parameters = SQLStore(DjangoDatabase(alias), 0.0).due(3, 200, Skipped())
        explain = "EXPLAIN QUERY PLAN" if vendor == "sqlite" else "EXPLAIN"
        with connections[alias].cursor() as cursor:
            cursor.execute(f"{explain} {statement}", parameters)
            assert "nsq_outbox_unpublished" in str(cursor.fetchall())
