"""What the outboxes of Django and of Flask (SQLAlchemy) both promise, on SQLite and, where it is installed, PostgreSQL.

What only one of them has is tested in ``tests/contrib/django/outbox`` and ``tests/contrib/flask``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from django.db import connections, transaction
from django.test import override_settings
from flask import Flask
from sqlalchemy import MetaData, create_engine, select, text, update
from sqlalchemy.orm import scoped_session, sessionmaker

from gnsq_like.contrib import django as contrib_django
from gnsq_like.contrib.django.outbox import relaying
from gnsq_like.contrib.django.outbox.database import DjangoDatabase
from gnsq_like.contrib.django.outbox.models import OutboxMessage
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.flask.outbox import Outbox
from gnsq_like.contrib.flask.outbox_database import SQLAlchemyDatabase
from gnsq_like.contrib.outbox import Event
from gnsq_like.contrib.shared.outbox.relay import Relay, RelayThread, Store
from gnsq_like.contrib.shared.outbox.rows import NO_KEY, Skipped, shard_of
from gnsq_like.contrib.shared.outbox.store import SQLStore
from gnsq_like.errors import InvalidBody
from gnsq_like.testing import RunningNsqd, running_nsqd
from tests.support.daemons import wait_for
from tests.support.outboxes import all_of as sent
from tests.support.postgres import USER, Postgres, migrated, on_postgres

#: Larger than any batch, and no divisor of one.
MANY = 450


class Row(NamedTuple):
    topic: str
    sequence: int | None
    body: bytes
    published_at: datetime | None
    refused: str | None


class Site(Protocol):
    """An application with an empty outbox."""

    #: Of the database, on PostgreSQL; "" on SQLite.
    database: str

    def transaction(self) -> AbstractContextManager[Any]: ...
    def publish(self, topic: str, body: Any, **options: Any) -> None:
        """In the open transaction."""

    def multi_publish(self, topic: str, bodies: Any, **options: Any) -> None: ...
    def rows(self) -> list[Row]: ...
    def change(self, **values: Any) -> None:
        """Columns of all rows."""

    def execute(self, statement: str) -> None:
        """As another process does it, without the wake of this one."""

    def close_connection(self) -> None:
        """That of this thread."""

    def relay(self) -> Relay: ...
    def store(self, keep: float = 3600.0) -> Store: ...


class DjangoSite:
    def __init__(self, using: str) -> None:
        self._using = using
        self.database = connections[using].settings_dict["NAME"] if connections[using].vendor == "postgresql" else ""

    def transaction(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self._using)

    def publish(self, topic: str, body: Any, **options: Any) -> None:
        contrib_django.publish(topic, body, outbox=True, using=self._using, **options)

    def multi_publish(self, topic: str, bodies: Any, **options: Any) -> None:
        contrib_django.multi_publish(topic, bodies, outbox=True, using=self._using, **options)

    def rows(self) -> list[Row]:
        found = OutboxMessage.objects.using(self._using).order_by("pk")
        return [Row(each.topic, each.sequence, bytes(each.body), each.published_at, each.refused) for each in found]

    def change(self, **values: Any) -> None:
        OutboxMessage.objects.using(self._using).update(**values)

    def execute(self, statement: str) -> None:
        with connections[self._using].cursor() as cursor:
            cursor.execute(statement)

    def close_connection(self) -> None:
        connections[self._using].close()

    def relay(self) -> Relay:
        return relaying.make_relay(self._using)

    def store(self, keep: float = 3600.0) -> Store:
        return SQLStore(DjangoDatabase(self._using), keep)


class FlaskSite:
    def __init__(self, url: str, **settings: Any) -> None:
        self.engine = create_engine(url, pool_pre_ping=True)
        self.database = self.engine.url.database or "" if self.engine.dialect.name == "postgresql" else ""
        metadata = MetaData()
        self._session = scoped_session(sessionmaker(self.engine))
        self.nsq = NSQ()
        self._outbox = Outbox(self.nsq, metadata, self._session)
        metadata.create_all(self.engine)
        self._app = Flask(__name__)
        self._app.config.update(settings)
        self.nsq.init_app(self._app)

    def publish(self, topic: str, body: Any, **options: Any) -> None:
        self._outbox.publish(topic, body, **options)

    def multi_publish(self, topic: str, bodies: Any, **options: Any) -> None:
        self._outbox.multi_publish(topic, bodies, **options)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._session.rollback()
            raise
        self._session.commit()

    def rows(self) -> list[Row]:
        c = self._outbox.messages.c
        with self.engine.connect() as connection:
            found = connection.execute(select(c.topic, c.sequence, c.body, c.published_at, c.refused).order_by(c.id))
            return [Row(*row) for row in found]

    def change(self, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(self._outbox.messages).values(values))

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def close_connection(self) -> None:
        self._session.remove()

    def relay(self) -> Relay:
        return self.nsq.make_relay(self._app)

    def store(self, keep: float = 3600.0) -> Store:
        return SQLStore(SQLAlchemyDatabase(self.engine, self._outbox.messages), keep)

    def close(self) -> None:
        self.close_connection()
        self.nsq.producer.close()
        self.engine.dispose()


@pytest.fixture
def nsqd() -> Iterator[RunningNsqd]:
    with running_nsqd() as daemon:
        yield daemon


@pytest.fixture
def settings() -> dict[str, Any]:
    """Of the integration, beside nsqd's address; for a test to change by its parameters."""
    return {}


@pytest.fixture(params=["django", "flask"])
def integration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgresql"])
def site(
    request: pytest.FixtureRequest, integration: str, tmp_path: Path, nsqd: RunningNsqd, settings: dict[str, Any]
) -> Iterator[Site]:
    server: Postgres | None = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    settings = {"NSQD_TCP_ADDRESSES": nsqd.tcp_address, **settings}
    file = tmp_path / "outbox.sqlite3"
    if integration == "django":
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": file} if server is None else on_postgres(server)
        with override_settings(NSQ=settings), migrated("outbox", database, "gnsq_like_outbox") as using:
            yield DjangoSite(using)
        relaying.made.clear()  # for what reports on this process
        return
    url = f"sqlite:///{file}"
    if server is not None:
        url = f"postgresql+psycopg://{USER}@/{server.new_database()}?host={server.host}"
    with closing(FlaskSite(url, **{f"NSQ_{name}": value for name, value in settings.items()})) as made:
        yield made


on_sqlite_only = pytest.mark.parametrize("site", ["sqlite"], indirect=True)
on_postgresql_only = pytest.mark.parametrize("site", ["postgresql"], indirect=True)
#: A relay that does not look by itself: what it finds, it was woken for.
patient = pytest.mark.parametrize("settings", [{"OUTBOX_POLL_INTERVAL": 10_000.0}], ids=["patient"])


class Undone(Exception):
    """Rolls a transaction back."""


@contextmanager
def in_vain(site: Site) -> Iterator[None]:
    """A transaction that is rolled back."""
    with suppress(Undone), site.transaction():
        yield
        raise Undone


def now() -> datetime:
    return datetime.now(UTC)


def elsewhere(site: Site, work: Callable[[], Any]) -> Any:
    """In another thread, with a connection of its own."""
    found: list[Any] = []

    def run() -> None:
        found.append(work())
        site.close_connection()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def publish_all(site: Site, *bodies: Any, topic: str = "orders", **options: Any) -> None:
    """In a transaction."""
    with site.transaction():
        site.multi_publish(topic, list(bodies), **options)


# -- new messages ---------------------------------------------------------------------------------------


def test_a_committed_message_is_published_and_one_rolled_back_is_not(nsqd: RunningNsqd, site: Site) -> None:
    with site.transaction():
        site.publish("orders", [1])
    with in_vain(site):
        site.publish("orders", [2])
    with site.transaction():
        site.publish("orders", b"raw")
    relay = site.relay()
    assert relay.run_once() == 2
    assert relay.run_once() == 0
    assert sent(nsqd, "orders", 2) == [b"[1]", b"raw"]
    assert all(row.published_at for row in site.rows())


def test_messages_of_a_key_are_numbered_and_keep_their_order(nsqd: RunningNsqd, site: Site) -> None:
    for number in range(3):
        for key in ("a", "b"):
            with site.transaction():
                site.publish("orders", number, key=key)
        with in_vain(site):
            site.publish("orders", "never", key="a")
    publish_all(site, 3, 4, key="a")
    publish_all(site, 0, topic="parcels", key="a")
    assert site.relay().run_once() == 9
    events = [Event.of(body) for body in sent(nsqd, "orders", 8)]
    assert [(each.sequence, each.data) for each in events if each.key == "a"] == [(1 + n, n) for n in range(5)]
    assert [(each.sequence, each.data) for each in events if each.key == "b"] == [(1 + n, n) for n in range(3)]
    assert Event.of(sent(nsqd, "parcels", 1)[0]).sequence == 1
    assert len({each.id for each in events}) == 8


def test_transactions_of_a_key_wait_for_each_other(site: Site) -> None:
    """So the one that commits first has the lower number, and is published first."""
    began = threading.Event()

    def second() -> None:
        began.set()
        publish_all(site, b"second", key="a")
        site.close_connection()

    thread = threading.Thread(target=second)
    with site.transaction():
        site.publish("orders", b"first", key="a")
        thread.start()
        began.wait()
    thread.join()
    assert [(row.sequence, Event.of(row.body).data) for row in site.rows()] == [(1, b"first"), (2, b"second")]


@on_postgresql_only
def test_rows_that_commit_late_are_found(nsqd: RunningNsqd, site: Site) -> None:
    """A lower id that commits after a higher one was published."""
    relay = site.relay()
    with site.transaction():
        site.publish("orders", b"late")
        elsewhere(site, lambda: publish_all(site, b"early"))
        assert elsewhere(site, relay.run_once) == 1
    assert relay.run_once() == 1
    assert [row.body for row in site.rows()] == [b"late", b"early"]
    assert sent(nsqd, "orders", 2) == [b"early", b"late"]


def test_more_than_a_batch_keeps_its_order(nsqd: RunningNsqd, site: Site) -> None:
    publish_all(site, *range(MANY), key="a")
    assert site.relay().run_once() == MANY
    assert [Event.of(body).data for body in sent(nsqd, "orders", MANY)] == list(range(MANY))


def test_the_envelope_is_for_keys_unless_asked_for(site: Site) -> None:
    publish_all(site, [1])
    publish_all(site, [1], key="a", envelope=False)
    publish_all(site, [1], envelope=True)
    publish_all(site, b"[1]", key="b")
    plain, keyed, *enveloped = [row.body for row in site.rows()]
    assert plain == keyed.replace(b" ", b"") == b"[1]"
    events = [Event.of(body) for body in enveloped]
    assert [(event.key, event.sequence, event.data) for event in events] == [("", None, [1]), ("b", 1, b"[1]")]


def test_a_deferred_message_waits_in_the_table(nsqd: RunningNsqd, site: Site) -> None:
    with site.transaction():
        site.publish("orders", b"later", defer=86_400 * 30)
        site.publish("orders", b"now", defer=0)
    relay = site.relay()
    assert relay.run_once() == 1
    assert relay.stats()["waiting"] == 0
    site.change(due_at=now())
    assert relay.run_once() == 1
    assert sent(nsqd, "orders", 2) == [b"now", b"later"]


@pytest.mark.parametrize("settings", [{"MAX_MSG_BYTES": 1000}], ids=["small"])
def test_of_several_messages_none_is_inserted_if_one_is_wrong_and_no_gap_is_left(site: Site) -> None:
    with site.transaction():
        for wrong in (b"", b"x" * 990):  # the second is too large with its envelope
            with pytest.raises(InvalidBody):
                site.multi_publish("orders", [b"1", wrong], key="a")
        site.multi_publish("orders", [], key="a")
    assert site.rows() == []
    publish_all(site, b"1", b"2", key="a")
    assert [row.sequence for row in site.rows()] == [1, 2]


# -- the relay ------------------------------------------------------------------------------------------


@contextmanager
def running(relay: Relay) -> Iterator[Relay]:
    """After its first round."""
    with RelayThread(relay):
        wait_for(lambda: relay._prune_at, "its first round")
        yield relay


@patient
def test_a_commit_wakes_the_relay_of_this_process(site: Site) -> None:
    with running(site.relay()) as relay:
        publish_all(site, b"x")
        wait_for(lambda: relay.stats()["published"] == 1, "the message")


@patient
@on_postgresql_only
def test_a_commit_elsewhere_wakes_the_relay_by_a_notification(site: Site) -> None:
    publish_all(site, b"x")
    with running(site.relay()) as relay:
        site.change(published_at=None)
        site.execute("SELECT pg_notify('gnsq_like_outbox', '')")
        wait_for(lambda: relay.stats()["published"] == 2, "the message")


@on_postgresql_only
def test_two_relays_share_the_shards(site: Site) -> None:
    """While one holds a claim, the other gets what is left, and nothing of it."""
    publish_all(site, *range(4))
    publish_all(site, "x", "y", key="a")
    shard = shard_of("orders", "a")

    def take(shard: int) -> int:
        def work() -> int:
            with site.store().claimed(shard, 10, Skipped()) as found:
                return len(found)

        return int(elsewhere(site, work))

    store = site.store()
    with store.claimed(NO_KEY, 3, Skipped()) as first:
        assert len(first) == 3
        assert take(NO_KEY) == 1
        assert take(shard) == 2
    with store.claimed(shard, 1, Skipped()) as first:
        assert len(first) == 1
        assert take(shard) == 0
    assert take(shard) == 2


@on_sqlite_only
def test_a_database_that_is_a_file_has_one_relay(site: Site) -> None:
    one, two = site.store(), site.store()
    assert one.is_mine()
    assert not two.is_mine()
    one.close()
    assert two.is_mine()
    two.close()


def test_skipped_rows_are_left(site: Site) -> None:
    publish_all(site, b"1", b"2")
    publish_all(site, b"1", b"2", key="a")
    store, shard = site.store(), shard_of("orders", "a")

    def claimed(shard: int, skipped: Skipped) -> int:
        with store.claimed(shard, 10, skipped) as found:
            return len(found)

    assert claimed(NO_KEY, Skipped(ids=frozenset([1]))) == 1
    assert claimed(shard, Skipped(keys=frozenset([("orders", "a")]))) == 0
    assert claimed(shard, Skipped(keys=frozenset([("parcels", "a")]))) == 2


def test_published_rows_are_pruned(site: Site) -> None:
    publish_all(site, b"1", b"2", b"3")
    site.relay().run_once()
    store = site.store()
    assert store.prune(2) == 0
    site.change(published_at=now() - timedelta(seconds=3601))
    publish_all(site, b"4")
    assert [store.prune(2), store.prune(2), store.prune(2)] == [2, 1, 0]
    assert [row.body for row in site.rows()] == [b"4"]


@pytest.mark.parametrize("settings", [{"OUTBOX_KEEP": 0}], ids=["none kept"])
def test_published_rows_may_be_deleted_at_once(site: Site) -> None:
    publish_all(site, b"1", key="a")
    assert site.relay().run_once() == 1
    assert site.rows() == []
    publish_all(site, b"2", key="a")
    assert [row.sequence for row in site.rows()] == [2]


def test_why_a_message_was_refused_is_in_its_row(site: Site) -> None:
    publish_all(site, b"1")
    site.change(topic="bad name")
    publish_all(site, b"2")
    assert site.relay().run_once() == 1
    reason, none = (row.refused for row in site.rows())
    assert "bad name" in (reason or "")
    assert none is None
    site.change(topic="orders")
    assert site.relay().run_once() == 1
    assert [row.refused for row in site.rows()] == [None, None]


def test_the_lag(site: Site) -> None:
    store = site.store()
    assert store.lag() == (0, 0.0)
    publish_all(site, b"1")
    site.change(created_at=now() - timedelta(seconds=50))
    with site.transaction():
        site.publish("orders", b"2", defer=1000)
    lag = store.lag()
    assert (lag.rows, 50 <= lag.seconds < 1000) == (1, True)
    site.change(due_at=now() - timedelta(seconds=1000))
    lag = store.lag()
    assert (lag.rows, lag.seconds >= 1000) == (2, True)


@on_postgresql_only
def test_a_lost_connection_is_made_again(site: Site, postgres: Postgres) -> None:
    with running(site.relay()) as relay:
        postgres.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{site.database}'", "postgres"
        )
        site.close_connection()
        publish_all(site, b"x")
        wait_for(lambda: relay.stats()["published"] == 1, "the message")
