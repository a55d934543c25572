"""The outbox of Flask: what it has beside what ``tests/contrib/shared/outbox/test_databases.py`` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask import Flask
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from sqlalchemy import MetaData, create_engine, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.flask.outbox import Outbox
from gnsq_like.contrib.opentelemetry import Tracing
from gnsq_like.contrib.outbox import Event
from gnsq_like.contrib.shared.envelope import unpack
from gnsq_like.errors import InvalidOption
from gnsq_like.testing import RunningNsqd
from tests.support.daemons import wait_for
from tests.support.outboxes import all_of as sent
from tests.support.patient import NsqdHTTPClient

#: Seconds for a command from its start to its end.
PATIENCE = 120.0


class Site(NamedTuple):
    """An application with an outbox, which reaches no nsqd."""

    app: Flask
    nsq: NSQ
    outbox: Outbox
    session: scoped_session[Session]


@contextmanager
def made(tmp_path: Path, tracing: Tracing | None = None, **settings: Any) -> Iterator[Site]:
    engine = create_engine(f"sqlite:///{tmp_path}/orders.sqlite3")
    metadata = MetaData()
    session: scoped_session[Session] = scoped_session(sessionmaker(engine))
    nsq = NSQ(tracing=tracing)
    outbox = Outbox(nsq, metadata, session)
    metadata.create_all(engine)
    app = Flask(__name__)
    app.config.update(settings, NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    nsq.init_app(app)
    try:
        yield Site(app, nsq, outbox, session)
    finally:
        session.remove()
        nsq.producer.close()
        engine.dispose()


@contextmanager
def savepoint(session: Any) -> Iterator[None]:
    """A savepoint that is rolled back."""
    with session.begin_nested() as transaction:
        yield
        transaction.rollback()


def test_a_recording_has_what_committed_in_transactions_and_savepoints(tmp_path: Path) -> None:
    with made(tmp_path, NSQ_RECORD=True) as site:
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


def test_a_trace_goes_into_the_outbox(tmp_path: Path) -> None:
    sender = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, False, TraceFlags(1))
    with made(tmp_path, Tracing(cloud_events=["orders"])) as site, trace.use_span(NonRecordingSpan(sender)):
        site.outbox.publish("orders", {"order": 1})
        site.outbox.publish("orders", {"order": 2}, key="a")
        site.outbox.publish("parcels", {"order": 3})
        site.session.commit()
        bodies = list(site.session.scalars(select(site.outbox.messages.c.body)))
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


def test_healthz_has_the_relay(tmp_path: Path) -> None:
    with made(tmp_path) as site:
        site.app.register_blueprint(site.nsq.health_blueprint())
        site.nsq.make_relay(site.app)
        [reported] = site.app.test_client().get("/healthz").get_json()["outboxes"]
        assert (reported["state"], reported["problem"]) == ("new", None)


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
