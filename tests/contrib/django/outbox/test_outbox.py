"""publish(outbox=True) and the relay, on SQLite and, where it is installed, PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
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

from gnsq_like import Message, NsqdHTTPClient
from gnsq_like.contrib.cloudevents import unpack
from gnsq_like.contrib.django import multi_publish, publish
from gnsq_like.contrib.django.outbox import relaying
from gnsq_like.contrib.django.outbox.models import OutboxMessage, OutboxSequence
from gnsq_like.contrib.django.outbox.store import DjangoStore
from gnsq_like.contrib.django.testing import recording
from gnsq_like.contrib.opentelemetry import Tracing
from gnsq_like.contrib.outbox import Event
from gnsq_like.contrib.shared.outbox.relay import RelayThread
from gnsq_like.contrib.shared.outbox.rows import NO_KEY, Skipped, shard_of
from gnsq_like.errors import InvalidBody, InvalidName, InvalidOption
from gnsq_like.testing import RunningNsqd, running_nsqd
from tests.support.daemons import wait_for
from tests.support.outboxes import all_of as sent
from tests.support.postgres import migrated, on_postgres

#: Larger than any batch, and no divisor of one.
MANY = 450


@pytest.fixture(params=["sqlite", "postgresql"])
def using(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The alias of a database with an empty outbox."""
    if request.param == "sqlite":
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "outbox.sqlite3"}
    else:
        settings = on_postgres(request.getfixturevalue("postgres"))
    with migrated("outbox", settings, "gnsq_like_outbox") as alias:
        yield alias


@pytest.fixture(autouse=True)
def no_relay_is_left() -> Iterator[None]:
    """For what reports on this process."""
    yield
    relaying.made.clear()


@pytest.fixture
def nsqd() -> Iterator[RunningNsqd]:
    with running_nsqd() as daemon, override_settings(NSQ={"NSQD_TCP_ADDRESSES": daemon.tcp_address}):
        yield daemon


class Undone(Exception):
    """Rolls a transaction back."""


def publish_in_vain(*arguments: Any, using: str, **options: Any) -> None:
    """Publish in a transaction that is rolled back."""
    with suppress(Undone), transaction.atomic(using=using):
        publish(*arguments, outbox=True, using=using, **options)
        raise Undone


def rows(using: str) -> list[tuple[Any, ...]]:
    found = OutboxMessage.objects.using(using).order_by("pk")
    return [(row.topic, row.key, row.sequence, bytes(row.body), row.published_at is not None) for row in found]


def test_a_committed_message_is_published_and_one_rolled_back_is_not(nsqd: RunningNsqd, using: str) -> None:
    with transaction.atomic(using=using):
        publish("orders", {"order": 1}, outbox=True, using=using)
    publish_in_vain("orders", {"order": 2}, using=using)
    publish("orders", b"raw", outbox=True, using=using)
    relay = relaying.make_relay(using)
    assert relay.run_once() == 2
    assert relay.run_once() == 0
    assert sent(nsqd, "orders", 2) == [b'{"order":1}', b"raw"]
    assert [row[-1] for row in rows(using)] == [True, True]


def test_messages_of_a_key_are_numbered_and_keep_their_order(nsqd: RunningNsqd, using: str) -> None:
    for number in range(3):
        for key in ("a", "b"):
            with transaction.atomic(using=using):
                publish("orders", {"number": number}, outbox=True, key=key, using=using)
        publish_in_vain("orders", {"number": "never"}, key="a", using=using)
    multi_publish("orders", [{"number": 3}, {"number": 4}], outbox=True, key="a", using=using)
    publish("parcels", {"number": 0}, outbox=True, key="a", using=using)
    assert relaying.make_relay(using).run_once() == 9
    events = [Event.of(body) for body in sent(nsqd, "orders", 8)]
    of_a = [(event.sequence, event.data["number"]) for event in events if event.key == "a"]
    assert of_a == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert [(event.sequence, event.data["number"]) for event in events if event.key == "b"] == [(1, 0), (2, 1), (3, 2)]
    assert Event.of(sent(nsqd, "parcels", 1)[0]).sequence == 1
    assert len({event.id for event in events}) == 8


def test_transactions_of_a_key_wait_for_each_other(nsqd: RunningNsqd, using: str) -> None:
    """So the one that commits first has the lower number, and is published first."""
    began = threading.Event()

    def second() -> None:
        began.set()
        with transaction.atomic(using=using):
            publish("orders", b"second", outbox=True, key="a", using=using)
        connections[using].close()

    thread = threading.Thread(target=second)
    with transaction.atomic(using=using):
        publish("orders", b"first", outbox=True, key="a", using=using)
        thread.start()
        began.wait()
        assert len(rows(using)) == 1
    thread.join()
    assert [(row[2], Event.of(row[3]).data) for row in rows(using)] == [(1, b"first"), (2, b"second")]


def test_rows_that_commit_late_are_found(nsqd: RunningNsqd, using: str) -> None:
    """A lower id that commits after a higher one was published."""
    if connections[using].vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    relay = relaying.make_relay(using)

    def other() -> None:
        publish("orders", b"early", outbox=True, using=using)
        connections[using].close()

    with transaction.atomic(using=using):
        publish("orders", b"late", outbox=True, using=using)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        done: list[int] = []
        thread = threading.Thread(target=lambda: done.append(relay.run_once()))
        thread.start()
        thread.join()
        assert done == [1]
    assert relay.run_once() == 1
    assert [row[3] for row in rows(using)] == [b"late", b"early"]
    assert sent(nsqd, "orders", 2) == [b"early", b"late"]


def test_more_than_a_batch_keeps_its_order(nsqd: RunningNsqd, using: str) -> None:
    with transaction.atomic(using=using):
        multi_publish("orders", [b"%d" % number for number in range(MANY)], outbox=True, key="a", using=using)
    assert relaying.make_relay(using).run_once() == MANY
    assert [Event.of(body).data for body in sent(nsqd, "orders", MANY)] == [b"%d" % number for number in range(MANY)]


def test_the_envelope_is_for_keys_unless_asked_for(nsqd: RunningNsqd, using: str) -> None:
    publish("orders", [1], outbox=True, using=using)
    publish("orders", [1], outbox=True, key="a", envelope=False, using=using)
    publish("orders", [1], outbox=True, envelope=True, using=using)
    publish("orders", b"[1]", outbox=True, key="b", using=using)
    bodies = [row[3] for row in rows(using)]
    assert bodies[:2] == [b"[1]", b"[1]"]
    events = [Event.of(body) for body in bodies[2:]]
    assert [(event.key, event.sequence, event.data) for event in events] == [("", None, [1]), ("b", 1, b"[1]")]


def test_a_deferred_message_waits_in_the_table(nsqd: RunningNsqd, using: str) -> None:
    publish("orders", b"later", outbox=True, defer=86_400 * 30, using=using)
    publish("orders", b"now", outbox=True, defer=0, using=using)
    relay = relaying.make_relay(using)
    assert relay.run_once() == 1
    assert relay.stats()["waiting"] == 0
    OutboxMessage.objects.using(using).update(due_at=timezone.now())
    assert relay.run_once() == 1
    assert sent(nsqd, "orders", 2) == [b"now", b"later"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "two words"}, InvalidName),
        ({"body": b""}, InvalidBody),
        ({"key": ""}, InvalidOption),
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
    assert rows(using) == []


def test_what_is_too_large_with_its_envelope_leaves_no_gap(nsqd: RunningNsqd, using: str) -> None:
    settings = {"NSQD_TCP_ADDRESSES": nsqd.tcp_address, "MAX_MSG_BYTES": 1000}
    with override_settings(NSQ=settings), transaction.atomic(using=using):
        with pytest.raises(InvalidBody):
            publish("orders", b"x" * 990, outbox=True, key="a", using=using)
        publish("orders", b"x", outbox=True, key="a", using=using)
    assert [row[2] for row in rows(using)] == [1]


def test_without_its_app_there_is_no_outbox() -> None:
    with override_settings(INSTALLED_APPS=["gnsq_like.contrib.django"], NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1"}):
        with pytest.raises(ImproperlyConfigured, match=r"gnsq_like\.contrib\.django\.outbox"):
            publish("orders", b"x", outbox=True)
        with pytest.raises(ImproperlyConfigured, match=r"gnsq_like\.contrib\.django\.outbox"):
            relaying.make_relay()


def test_a_recording_has_what_committed(nsqd: RunningNsqd, using: str) -> None:
    with recording() as published:
        publish("orders", {"order": 1}, outbox=True, using=using)
        publish_in_vain("orders", {"order": 2}, using=using)
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
        bodies = [row[3] for row in rows(using)]
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


# -- the relay ------------------------------------------------------------------------------------------


@pytest.fixture
def patient(nsqd: RunningNsqd) -> Iterator[None]:
    """A relay that does not look by itself: what it finds, it was woken for."""
    settings = {"NSQD_TCP_ADDRESSES": nsqd.tcp_address, "OUTBOX_POLL_INTERVAL": 10_000.0}
    with override_settings(NSQ=settings):
        yield


def test_a_commit_wakes_the_relay_of_this_process(nsqd: RunningNsqd, patient: None, using: str) -> None:
    relay = relaying.make_relay(using)
    with RelayThread(relay):
        wait_for(lambda: relay._prune_at, "its first round")
        with transaction.atomic(using=using):
            publish("orders", b"x", outbox=True, using=using)
        wait_for(lambda: relay.stats()["published"] == 1, "the message")


def test_a_commit_elsewhere_wakes_the_relay_by_a_notification(
    nsqd: RunningNsqd, patient: None, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connections[using].vendor == "sqlite":
        pytest.skip("SQLite has no notifications")
    relay = relaying.make_relay(using)
    with RelayThread(relay):
        wait_for(lambda: relay._prune_at, "its first round")
        with connections[using].cursor() as cursor, transaction.atomic(using=using):
            # As another process does it: without the wake of this one.
            row = {"topic": "orders", "shard": NO_KEY, "body": b"x"}
            OutboxMessage.objects.using(using).create(**row)
            cursor.execute("SELECT pg_notify('gnsq_like_outbox', '')")
        wait_for(lambda: relay.stats()["published"] == 1, "the message")


def test_two_relays_share_the_shards(nsqd: RunningNsqd, using: str) -> None:
    """While one holds a claim, the other gets what is left, and nothing of it."""
    if connections[using].vendor == "sqlite":
        pytest.skip("SQLite has one relay")
    multi_publish("orders", [b"%d" % number for number in range(4)], outbox=True, using=using)
    multi_publish("orders", [b"x", b"y"], outbox=True, key="a", using=using)
    shard = shard_of("orders", "a")

    def elsewhere(work: Callable[[DjangoStore], Any]) -> Any:
        found: list[Any] = []

        def run() -> None:
            store = DjangoStore(using, 0.0)
            found.append(work(store))
            store.close()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]

    def take(shard: int, limit: int) -> Callable[[DjangoStore], int]:
        def work(store: DjangoStore) -> int:
            with store.claimed(shard, limit, Skipped()) as found:
                return len(found)

        return work

    store = DjangoStore(using, 0.0)
    with store.claimed(NO_KEY, 3, Skipped()) as first:
        assert len(first) == 3
        assert elsewhere(take(NO_KEY, 10)) == 1
        assert elsewhere(take(shard, 10)) == 2
    with store.claimed(shard, 1, Skipped()) as first:
        assert len(first) == 1
        assert elsewhere(take(shard, 10)) == 0
    assert elsewhere(take(shard, 10)) == 2


def test_a_database_that_is_a_file_has_one_relay(nsqd: RunningNsqd, using: str) -> None:
    if connections[using].vendor == "postgresql":
        pytest.skip("PostgreSQL has any number")
    one, two = relaying.make_relay(using), relaying.make_relay(using)
    with RelayThread(one):
        wait_for(lambda: one._prune_at, "its first round")
        publish("orders", b"x", outbox=True, using=using)
        with RelayThread(two):
            wait_for(lambda: two.stats()["state"] == "standing by", "the second")
            wait_for(lambda: one.stats()["published"] == 1, "the message")
            one.stop()
            wait_for(lambda: two.stats()["state"] == "running", "the second's turn")


def test_skipped_rows_are_left(nsqd: RunningNsqd, using: str) -> None:
    multi_publish("orders", [b"1", b"2"], outbox=True, using=using)
    multi_publish("orders", [b"1", b"2"], outbox=True, key="a", using=using)
    first = OutboxMessage.objects.using(using).order_by("pk").first()
    store = DjangoStore(using, 0.0)
    with store.claimed(NO_KEY, 10, Skipped(ids=frozenset([first.pk]))) as found:
        assert [row.id for row in found] == [first.pk + 1]
    with store.claimed(shard_of("orders", "a"), 10, Skipped(keys=frozenset([("orders", "a")]))) as found:
        assert list(found) == []
    with store.claimed(shard_of("orders", "a"), 10, Skipped(keys=frozenset([("parcels", "a")]))) as found:
        assert len(found) == 2


def test_published_rows_are_pruned(nsqd: RunningNsqd, using: str) -> None:
    multi_publish("orders", [b"1", b"2", b"3"], outbox=True, using=using)
    relaying.make_relay(using).run_once()
    publish("orders", b"4", outbox=True, using=using)
    store = DjangoStore(using, 3600.0)
    assert store.prune(2) == 0
    OutboxMessage.objects.using(using).exclude(published_at=None).update(
        published_at=timezone.now() - timedelta(seconds=3601)
    )
    assert [store.prune(2), store.prune(2), store.prune(2)] == [2, 1, 0]
    assert [row[3] for row in rows(using)] == [b"4"]


def test_published_rows_may_be_deleted_at_once(nsqd: RunningNsqd, using: str) -> None:
    settings = {"NSQD_TCP_ADDRESSES": nsqd.tcp_address, "OUTBOX_KEEP": 0}
    with override_settings(NSQ=settings):
        publish("orders", b"1", outbox=True, key="a", using=using)
        assert relaying.make_relay(using).run_once() == 1
    assert rows(using) == []
    assert OutboxSequence.objects.using(using).get().last == 1


def test_why_a_message_was_refused_is_in_its_row(nsqd: RunningNsqd, using: str) -> None:
    def refused() -> list[str | None]:
        return list(OutboxMessage.objects.using(using).order_by("pk").values_list("refused", flat=True))

    publish("orders", b"1", outbox=True, using=using)
    publish("orders", b"2", outbox=True, using=using)
    OutboxMessage.objects.using(using).filter(body=b"1").update(topic="bad name")
    assert relaying.make_relay(using).run_once() == 1
    reason, none = refused()
    assert reason is not None
    assert "bad name" in reason
    assert none is None
    OutboxMessage.objects.using(using).filter(body=b"1").update(topic="orders")
    assert relaying.make_relay(using).run_once() == 1
    assert refused() == [None, None]


def test_the_lag(nsqd: RunningNsqd, using: str) -> None:
    store = DjangoStore(using, 3600.0)
    assert store.lag() == (0, 0.0)
    publish("orders", b"1", outbox=True, using=using)
    publish("orders", b"2", outbox=True, defer=1000, using=using)
    OutboxMessage.objects.using(using).filter(due_at=None).update(created_at=timezone.now() - timedelta(seconds=50))
    lag = store.lag()
    assert (lag.rows, 50 <= lag.seconds < 1000) == (1, True)
    OutboxMessage.objects.using(using).exclude(due_at=None).update(due_at=timezone.now() - timedelta(seconds=1000))
    lag = store.lag()
    assert (lag.rows, lag.seconds >= 1000) == (2, True)


def test_a_lost_connection_is_made_again(nsqd: RunningNsqd, using: str, request: pytest.FixtureRequest) -> None:
    if connections[using].vendor == "sqlite":
        pytest.skip("SQLite has no server")
    relay = relaying.make_relay(using)
    with RelayThread(relay):
        wait_for(lambda: relay._prune_at, "its first round")
        request.getfixturevalue("postgres").execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
            f"'{connections[using].settings_dict['NAME']}' AND pid <> pg_backend_pid()",
            "postgres",
        )
        connections[using].close()
        publish("orders", b"x", outbox=True, using=using)
        wait_for(lambda: relay.stats()["published"] == 1, "the message")


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
        claim = DjangoStore(alias, 0.0)._due(3, 200, Skipped())
        assert "nsq_outbox_unpublished" in claim.explain()
