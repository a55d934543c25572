"""The outbox in SQLAlchemy, on SQLite and, where it is installed, PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask import Flask
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from sqlalchemy import Engine, MetaData, create_engine, select, text, update
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from gnsq_like import NsqdHTTPClient
from gnsq_like.contrib.cloudevents import unpack
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.flask.outbox import Outbox
from gnsq_like.contrib.flask.outbox_store import SQLAlchemyStore, now
from gnsq_like.contrib.opentelemetry import Tracing
from gnsq_like.contrib.outbox import Event
from gnsq_like.contrib.shared.outbox.relay import Relay, RelayThread
from gnsq_like.contrib.shared.outbox.rows import NO_KEY, Skipped, shard_of
from gnsq_like.errors import InvalidBody, InvalidOption
from gnsq_like.testing import RunningNsqd, running_nsqd
from tests.support.daemons import wait_for
from tests.support.outboxes import all_of as sent
from tests.support.postgres import USER, Postgres, running_postgres

#: Seconds for a command from its start to its end.
PATIENCE = 120.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


class Site(NamedTuple):
    """An application with an outbox."""

    app: Flask
    nsq: NSQ
    outbox: Outbox
    session: scoped_session[Session]
    engine: Engine

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def store(self, keep: float = 3600.0) -> SQLAlchemyStore:
        return SQLAlchemyStore(self.engine, self.outbox.messages, keep)

    def rows(self) -> list[tuple[Any, ...]]:
        c = self.outbox.messages.c
        with self.engine.connect() as connection:
            found = connection.execute(select(c.key, c.sequence, c.body, c.published_at).order_by(c.id))
            return [(key, sequence, bytes(body), at is not None) for key, sequence, body, at in found]

    def relay(self) -> Relay:
        return self.nsq.make_relay(self.app)

    def change(self, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(self.outbox.messages).values(values))


@pytest.fixture
def nsqd() -> Iterator[RunningNsqd]:
    with running_nsqd() as daemon:
        yield daemon


@contextmanager
def made(url: str, tracing: Tracing | None = None, **settings: Any) -> Iterator[Site]:
    engine = create_engine(url, pool_pre_ping=True)
    metadata = MetaData()
    session: scoped_session[Session] = scoped_session(sessionmaker(engine))
    nsq = NSQ(tracing=tracing)
    outbox = Outbox(nsq, metadata, session)
    metadata.create_all(engine)
    app = Flask(__name__)
    app.config.update(settings)
    nsq.init_app(app)
    try:
        yield Site(app, nsq, outbox, session, engine)
    finally:
        session.remove()
        nsq.producer.close()
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/orders.sqlite3"
    server: Postgres = request.getfixturevalue("postgres")
    return f"postgresql+psycopg://{USER}@/{server.new_database()}?host={server.host}"


@pytest.fixture
def site(url: str, nsqd: RunningNsqd) -> Iterator[Site]:
    with made(url, NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address) as found:
        yield found


def test_a_committed_message_is_published_and_one_rolled_back_is_not(nsqd: RunningNsqd, site: Site) -> None:
    site.outbox.publish("orders", {"order": 1})
    site.session.commit()
    site.outbox.publish("orders", {"order": 2})
    site.session.rollback()
    site.outbox.publish("orders", b"raw")
    site.session.commit()
    assert site.relay().run_once() == 2
    assert site.relay().run_once() == 0
    assert sent(nsqd, "orders", 2) == [b'{"order": 1}', b"raw"]
    assert [row[-1] for row in site.rows()] == [True, True]


def test_messages_of_a_key_are_numbered_and_keep_their_order(nsqd: RunningNsqd, site: Site) -> None:
    for number in range(3):
        for key in ("a", "b"):
            site.outbox.publish("orders", number, key=key)
            site.session.commit()
        site.outbox.publish("orders", "never", key="a")
        site.session.rollback()
    site.outbox.multi_publish("orders", [3, 4], key="a")
    site.outbox.publish("parcels", 0, key="a")
    site.session.commit()
    assert site.relay().run_once() == 9
    events = [Event.of(body) for body in sent(nsqd, "orders", 8)]
    assert [(each.sequence, each.data) for each in events if each.key == "a"] == [(1 + n, n) for n in range(5)]
    assert [(each.sequence, each.data) for each in events if each.key == "b"] == [(1 + n, n) for n in range(3)]
    assert Event.of(sent(nsqd, "parcels", 1)[0]).sequence == 1


def test_transactions_of_a_key_wait_for_each_other(nsqd: RunningNsqd, site: Site) -> None:
    began = threading.Event()

    def second() -> None:
        began.set()
        site.outbox.publish("orders", b"second", key="a")
        site.session.commit()
        site.session.remove()

    thread = threading.Thread(target=second)
    site.outbox.publish("orders", b"first", key="a")
    thread.start()
    began.wait()
    assert site.rows() == []
    site.session.commit()
    thread.join()
    assert [(row[1], Event.of(row[2]).data) for row in site.rows()] == [(1, b"first"), (2, b"second")]


def test_a_deferred_message_waits_in_the_table(nsqd: RunningNsqd, site: Site) -> None:
    site.outbox.publish("orders", b"later", defer=86_400 * 30)
    site.outbox.publish("orders", b"now", defer=0)
    site.session.commit()
    relay = site.relay()
    assert relay.run_once() == 1
    assert relay.stats()["waiting"] == 0
    site.change(due_at=now())
    assert relay.run_once() == 1
    assert sent(nsqd, "orders", 2) == [b"now", b"later"]


def test_a_recording_has_what_committed(tmp_path: Path) -> None:
    with made(f"sqlite:///{tmp_path}/orders.sqlite3", NSQ_RECORD=True, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1") as site:
        site.outbox.publish("orders", {"order": 1})
        assert site.nsq.outbox == []
        site.session.commit()
        site.outbox.publish("orders", {"order": 2})
        site.session.rollback()
        site.outbox.publish("orders", {"order": 3})
        site.session.commit()
        assert [each.json() for each in site.nsq.outbox] == [{"order": 1}, {"order": 3}]


@contextmanager
def savepoint(session: Any) -> Iterator[None]:
    """A savepoint that is rolled back."""
    with session.begin_nested() as transaction:
        yield
        transaction.rollback()


def test_a_recording_respects_savepoints(tmp_path: Path) -> None:
    with made(f"sqlite:///{tmp_path}/orders.sqlite3", NSQ_RECORD=True, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1") as site:
        session, publish = site.session, site.outbox.publish
        publish("orders", 1)
        with session.begin_nested():
            publish("orders", 2)
        with savepoint(session):
            publish("orders", "never")
            with session.begin_nested():
                publish("orders", "never")
        with session.begin_nested():
            with savepoint(session):
                publish("orders", "never")
            publish("orders", 3)
        assert site.nsq.outbox == []
        session.commit()
        assert [each.json() for each in site.nsq.outbox] == [1, 2, 3]
        with session.begin_nested():
            publish("orders", "never")
        session.rollback()
        publish("orders", "never")
        session.close()
        publish("orders", 4)
        session.commit()
        assert [each.json() for each in site.nsq.outbox] == [1, 2, 3, 4]


def test_of_several_messages_none_is_inserted_if_one_is_wrong(site: Site) -> None:
    with pytest.raises(InvalidBody):
        site.outbox.multi_publish("orders", [b"1", b"2", b""], key="a")
    site.outbox.multi_publish("orders", [], key="a")
    site.session.commit()
    assert site.rows() == []
    site.outbox.multi_publish("orders", (b"%d" % number for number in range(3)), key="a")
    site.session.commit()
    assert [row[1] for row in site.rows()] == [1, 2, 3]


def test_a_trace_goes_into_the_outbox(tmp_path: Path) -> None:
    sender = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, False, TraceFlags(1))
    url, tracing = f"sqlite:///{tmp_path}/orders.sqlite3", Tracing(cloud_events=["orders"])
    with made(url, tracing, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1") as site, trace.use_span(NonRecordingSpan(sender)):
        site.outbox.publish("orders", {"order": 1})
        site.outbox.publish("orders", {"order": 2}, key="a")
        site.outbox.publish("parcels", {"order": 3})
        site.session.commit()
        bodies = [row[2] for row in site.rows()]
    assert bodies[2] == b'{"order": 3}'
    for number, body in enumerate(bodies[:2], 1):
        event = unpack(body)
        assert event is not None
        assert event.attributes["traceparent"] == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        assert event.data == b'{"order": %d}' % number
    assert Event.of(bodies[1]).sequence == 1


def test_without_an_outbox_there_is_no_relay() -> None:
    nsq = NSQ()
    app = Flask(__name__)
    app.config["NSQ_NSQD_TCP_ADDRESSES"] = "127.0.0.1:1"
    nsq.init_app(app)
    with pytest.raises(InvalidOption, match="no Outbox"):
        nsq.make_relay(app)


# -- the relay ------------------------------------------------------------------------------------------


def test_a_commit_wakes_the_relay_and_healthz_shows_it(url: str, nsqd: RunningNsqd) -> None:
    settings: dict[str, Any] = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address, "NSQ_OUTBOX_POLL_INTERVAL": 10_000.0}
    with made(url, **settings) as site:
        site.app.register_blueprint(site.nsq.health_blueprint())
        relay = site.relay()
        with RelayThread(relay):
            wait_for(lambda: relay._prune_at, "its first round")
            site.outbox.publish("orders", b"x")
            site.session.commit()
            wait_for(lambda: relay.stats()["published"] == 1, "the message")
            if not site.is_sqlite:
                # As another process does it: without the wake of this one.
                with site.engine.begin() as connection:
                    row = {"topic": "orders", "key": "", "shard": NO_KEY, "body": b"y", "created_at": now()}
                    connection.execute(site.outbox.messages.insert().values(row))
                    connection.execute(text("SELECT pg_notify('gnsq_like_outbox', '')"))
                wait_for(lambda: relay.stats()["published"] == 2, "the message")
            [reported] = site.app.test_client().get("/healthz").get_json()["outboxes"]
            assert (reported["state"], reported["problem"]) == ("running", None)


def test_two_relays_share_the_shards(site: Site) -> None:
    if site.is_sqlite:
        one, two = site.store(), site.store()
        assert one.is_mine()
        assert not two.is_mine()
        one.close()
        assert two.is_mine()
        two.close()
        return
    site.outbox.multi_publish("orders", [b"%d" % number for number in range(4)])
    site.outbox.multi_publish("orders", [b"x", b"y"], key="a")
    site.session.commit()
    shard = shard_of("orders", "a")

    def elsewhere(shard: int) -> int:
        with site.store().claimed(shard, 10, Skipped()) as found:
            return len(found)

    store = site.store()
    with store.claimed(NO_KEY, 3, Skipped()) as first:
        assert len(first) == 3
        assert elsewhere(NO_KEY) == 1
        assert elsewhere(shard) == 2
    with store.claimed(shard, 1, Skipped()) as first:
        assert len(first) == 1
        assert elsewhere(shard) == 0
    assert elsewhere(shard) == 2


def test_skipped_rows_are_left(site: Site) -> None:
    site.outbox.multi_publish("orders", [b"1", b"2"])
    site.outbox.multi_publish("orders", [b"1", b"2"], key="a")
    site.session.commit()
    store, shard = site.store(), shard_of("orders", "a")

    def claimed(shard: int, skipped: Skipped) -> int:
        with store.claimed(shard, 10, skipped) as found:
            return len(found)

    assert claimed(NO_KEY, Skipped(ids=frozenset([1]))) == 1
    assert claimed(shard, Skipped(keys=frozenset([("orders", "a")]))) == 0
    assert claimed(shard, Skipped(keys=frozenset([("parcels", "a")]))) == 2


def test_published_rows_are_pruned(nsqd: RunningNsqd, site: Site) -> None:
    site.outbox.multi_publish("orders", [b"1", b"2", b"3"])
    site.session.commit()
    site.relay().run_once()
    store = site.store()
    assert store.prune(2) == 0
    site.change(published_at=now() - timedelta(seconds=3601))
    site.outbox.publish("orders", b"4")
    site.session.commit()
    assert [store.prune(2), store.prune(2), store.prune(2)] == [2, 1, 0]
    assert [row[2] for row in site.rows()] == [b"4"]


def test_why_a_message_was_refused_is_in_its_row(nsqd: RunningNsqd, site: Site) -> None:
    def refused() -> str | None:
        with site.engine.connect() as connection:
            return connection.execute(select(site.outbox.messages.c.refused)).scalar_one()

    site.outbox.publish("orders", b"1")
    site.session.commit()
    site.change(topic="bad name")
    assert site.relay().run_once() == 0
    assert "bad name" in (refused() or "")
    site.change(topic="orders")
    assert site.relay().run_once() == 1
    assert refused() is None


def test_the_lag(site: Site) -> None:
    store = site.store()
    assert store.lag() == (0, 0.0)
    site.outbox.publish("orders", b"1")
    site.session.commit()
    site.change(created_at=now() - timedelta(seconds=50))
    lag = store.lag()
    assert (lag.rows, 50 <= lag.seconds < 1000) == (1, True)
    site.change(due_at=now() + timedelta(seconds=1000))
    assert store.lag().rows == 0
    site.change(due_at=now() - timedelta(seconds=1000))
    assert store.lag().seconds >= 1000


def test_a_lost_connection_is_made_again(site: Site, request: pytest.FixtureRequest) -> None:
    if site.is_sqlite:
        pytest.skip("SQLite has no server")
    relay = site.relay()
    with RelayThread(relay):
        wait_for(lambda: relay._prune_at, "its first round")
        request.getfixturevalue("postgres").execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{site.engine.url.database}'",
            "postgres",
        )
        site.outbox.publish("orders", b"x")
        site.session.commit()
        wait_for(lambda: relay.stats()["published"] == 1, "the message")


def _made_by_processes(tmp_path: Path) -> Callable[..., Any]:
    from tests.support.web import Server

    environment = {"DATABASE": f"sqlite:///{tmp_path}/orders.sqlite3"}

    def start(*arguments: str, **more: str) -> Server:
        command = ["-m", "flask", "--app", "tests.contrib.flask.orders_app:create_app()", *arguments]
        return Server(command, tmp_path, **environment, **more)

    return start


@pytest.mark.servers
def test_the_commands(tmp_path: Path, nsqd: RunningNsqd) -> None:
    start = _made_by_processes(tmp_path)
    address = {"NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
    assert start("make-tables", **address).wait_for_end(PATIENCE) == 0
    placing = start("place", "some", "20", **address)
    assert placing.wait_for_end(PATIENCE) == 0
    assert start("nsq", "relay", "--once", **address).wait_for_end(PATIENCE) == 0
    committed = placing.noted("committed")
    events = [Event.of(body) for body in sent(nsqd, "orders", len(committed))]
    assert sorted(event.data["order"] for event in events) == sorted(committed)
    relay = start("nsq", "relay", **address)
    wait_for(lambda: "publishing the outbox" in relay.log, "the relay")
    assert start("place", "more", "20", **address).wait_for_end(PATIENCE) == 0

    def count() -> int:
        with NsqdHTTPClient(nsqd.http_address) as client:
            return sum(each["message_count"] for each in client.stats(topic="orders")["topics"])

    wait_for(lambda: count() == len(placing.noted("committed")), "the messages")
    assert relay.end() == 0
