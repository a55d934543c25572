"""A transactional outbox in Flask applications, in a database of SQLAlchemy.

::

    db = SQLAlchemy()
    nsq = NSQ()
    outbox = Outbox(nsq, db.metadata, db.session)           # makes two tables known to db.metadata

    @app.post("/order")
    def order():
        order = Order(item=request.form["item"])
        db.session.add(order)
        db.session.flush()
        outbox.publish("orders", {"order": order.id}, key=str(order.customer_id))
        db.session.commit()
        return "", 204

``flask nsq relay`` publishes what has committed; so does ``flask nsq run --relay``, beside the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from gnsq_like.contrib.shared.extras import missing
from gnsq_like.contrib.shared.outbox.relay import Relay
from gnsq_like.contrib.shared.outbox.rows import MAX_KEY_CHARS, NewRows
from gnsq_like.contrib.shared.outbox.store import SQLStore
from gnsq_like.contrib.shared.outbox.waking import CHANNEL, wake_all

try:
    from sqlalchemy import (
        BigInteger,
        Column,
        DateTime,
        Index,
        Integer,
        LargeBinary,
        MetaData,
        SmallInteger,
        String,
        Table,
        Text,
        UniqueConstraint,
        and_,
        event,
        func,
        insert,
        select,
        update,
    )
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.orm import Session, SessionTransaction
except ModuleNotFoundError as exc:
    raise missing(exc, distribution="sqlalchemy") from exc

from gnsq_like.contrib.flask.outbox_database import SQLAlchemyDatabase, now

if TYPE_CHECKING:
    from gnsq_like import Producer
    from gnsq_like.contrib.opentelemetry import Tracing

#: SQLite numbers rows only in a column of this type.
_ID = BigInteger().with_variant(Integer, "sqlite")
#: In ``session.info``: the messages to record if the transaction commits, each with its transaction or savepoint.
_RECORDED = "gnsq_like_recorded"
_Recorded = tuple[SessionTransaction | None, str, bytes]


class Extension(Protocol):
    """The members of ``gnsq_like.contrib.flask.NSQ`` that an outbox uses."""

    @property
    def producer(self) -> Producer[Any]: ...

    @property
    def is_recording(self) -> bool: ...

    @property
    def tracing(self) -> Tracing | None: ...

    def relay_by(self, make: Callable[[Producer[Any], float, float], Relay]) -> None: ...


class Outbox:
    """The outbox of the applications of an ``NSQ``.

    :param nsq: publishes what has committed
    :param metadata: gets the tables, for ``create_all`` and for Alembic's migrations
    :param session: returns the current session, such as Flask-SQLAlchemy's ``db.session``
    :param prefix: of the tables' names
    """

    def __init__(
        self, nsq: Extension, metadata: MetaData, session: Callable[[], Session], *, prefix: str = "nsq_outbox"
    ) -> None:
        self._nsq = nsq
        self._session = session
        self._name = prefix
        self.messages = _messages(metadata, prefix)
        self.sequences = Table(
            f"{prefix}_sequence",
            metadata,
            Column("id", _ID, primary_key=True),
            Column("topic", String(64), nullable=False),
            Column("key", String(MAX_KEY_CHARS), nullable=False),
            Column("last", BigInteger, nullable=False),
            UniqueConstraint("topic", "key", name=f"{prefix}_sequence_key"),
        )
        nsq.relay_by(self._make_relay)

    def publish(
        self,
        topic: str,
        body: Any,
        *,
        key: str | None = None,
        defer: float | None = None,
        envelope: bool | None = None,
        session: Session | None = None,
    ) -> None:
        """Insert a message in the session's transaction; the relay publishes it, at least once, if that commits.

        :param body: as of ``nsq.publish``
        :param key: messages of a topic with the same key are numbered, and published in the order in which their
            transactions commit, which wait for each other
        :param defer: seconds until it is published, at most ten years
        :param envelope: whether it gets an envelope with its id, key and number, see
            :class:`gnsq_like.contrib.outbox.Event`; by default if it has a key
        :param session: instead of the current one
        :raises InvalidName, InvalidBody, InvalidOption: at once; nothing is inserted then
        """
        self._add(topic, [body], key, defer, envelope, session)

    def multi_publish(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        key: str | None = None,
        envelope: bool | None = None,
        session: Session | None = None,
    ) -> None:
        """Insert several messages; see :meth:`publish`."""
        self._add(topic, bodies, key, None, envelope, session)

    def _add(
        self,
        topic: str,
        bodies: Iterable[Any],
        key: str | None,
        defer: float | None,
        envelope: bool | None,
        session: Session | None,
    ) -> None:
        rows = NewRows(
            topic,
            bodies,
            key=key,
            defer=defer,
            envelope=envelope,
            check=self._nsq.producer.check,
            tracing=None if self._nsq.is_recording else self._nsq.tracing,
        )
        session = self._session() if session is None else session
        last = self._advance(session, topic, rows.key, len(rows)) if rows.key and len(rows) else None
        for values in rows.values(last, now()):
            session.execute(insert(self.messages).values(values))
            self._at_commit(session, topic, values["body"])

    def _advance(self, session: Session, topic: str, key: str, count: int) -> int:
        """Take the next numbers, and return the last. Other transactions with this key wait for this one's end."""
        table = self.sequences
        mine = and_(table.c.topic == topic, table.c.key == key)
        advance = update(table).where(mine).values(last=table.c.last + count)
        if not session.execute(advance).rowcount:  # type: ignore[attr-defined]
            self._begin_sequence(session, topic, key)
            session.execute(advance)
        return int(session.execute(select(table.c.last).where(mine)).scalar_one())

    def _begin_sequence(self, session: Session, topic: str, key: str) -> None:
        values = {"topic": topic, "key": key, "last": 0}
        dialect = self._dialect(session)
        if dialect in ("postgresql", "sqlite"):
            ours: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
            session.execute(ours(self.sequences).values(values).on_conflict_do_nothing())
            return
        try:
            with session.begin_nested():
                session.execute(insert(self.sequences).values(values))
        except IntegrityError:
            pass  # another transaction has made it

    def _dialect(self, session: Session) -> str:
        return str(session.get_bind(clause=self.messages).dialect.name)

    def _at_commit(self, session: Session, topic: str, body: bytes) -> None:
        if self._dialect(session) == "postgresql":
            # Passed on at the commit, once for each transaction.
            session.execute(select(func.pg_notify(CHANNEL, "")))
        if _RECORDED not in session.info:
            session.info[_RECORDED] = []
            event.listen(session, "after_commit", self._committed)
            event.listen(session, "after_soft_rollback", _rolled_back)
        if self._nsq.is_recording:
            session.info[_RECORDED].append((_current(session), topic, body))

    def _committed(self, session: Session) -> None:
        """Of a transaction, or of a savepoint in it."""
        wake_all()
        ended = _current(session)
        recorded: list[_Recorded] = session.info[_RECORDED]
        if ended is not None and ended.nested:
            session.info[_RECORDED] = [(ended.parent if each[0] is ended else each[0], *each[1:]) for each in recorded]
            return
        session.info[_RECORDED] = []
        for within, topic, body in recorded:
            # A closed session reports no end of its transaction.
            if within is ended:
                # Tests that record run no relay, so it is published here.
                self._nsq.producer.publish(topic, body)

    def _make_relay(self, producer: Producer[Any], keep: float, poll_interval: float) -> Relay:
        """In a context of the application."""
        engine: Any = self._session().get_bind(clause=self.messages)
        store = SQLStore(SQLAlchemyDatabase(engine.engine, self.messages), keep)
        return Relay(store, producer, poll_interval=poll_interval, name=self._name)


def _current(session: Session) -> SessionTransaction | None:
    """The innermost savepoint, or the transaction."""
    return session.get_nested_transaction() or session.get_transaction()


def _rolled_back(session: Session, ended: SessionTransaction) -> None:
    session.info[_RECORDED] = [each for each in session.info[_RECORDED] if not _is_within(each[0], ended)]


def _is_within(inner: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while inner is not None and inner is not outer:
        inner = inner.parent
    return inner is outer


def _messages(metadata: MetaData, prefix: str) -> Table:
    """``gnsq_like.contrib.shared.outbox`` explains the table."""
    table = Table(
        f"{prefix}_message",
        metadata,
        Column("id", _ID, primary_key=True),
        Column("topic", String(64), nullable=False),
        Column("key", String(MAX_KEY_CHARS), nullable=False),
        Column("sequence", BigInteger),
        Column("shard", SmallInteger, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("created_at", DateTime(timezone=True), nullable=False),
        Column("due_at", DateTime(timezone=True)),
        Column("published_at", DateTime(timezone=True)),
        Column("refused", Text),
    )
    c = table.c
    is_unpublished = c.published_at.is_(None)
    is_due = and_(is_unpublished, c.due_at.is_not(None))
    is_published = c.published_at.is_not(None)
    Index(f"{prefix}_unpublished", c.shard, c.id, postgresql_where=is_unpublished, sqlite_where=is_unpublished)
    Index(f"{prefix}_due", c.due_at, postgresql_where=is_due, sqlite_where=is_due)
    Index(f"{prefix}_published", c.published_at, postgresql_where=is_published, sqlite_where=is_published)
    return table
