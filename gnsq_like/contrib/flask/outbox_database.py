"""A database of SQLAlchemy, as the store of an outbox's relay uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from gnsq_like.contrib.shared.extras import missing
from gnsq_like.contrib.shared.outbox.store import Run

try:
    from sqlalchemy import DateTime, bindparam, text
    from sqlalchemy.engine import Engine
    from sqlalchemy.schema import Table
except ModuleNotFoundError as exc:
    raise missing(exc, distribution="sqlalchemy") from exc


def now() -> datetime:
    """The time as it is in the table: UTC."""
    return datetime.now(UTC)


class SQLAlchemyDatabase:
    """See :class:`gnsq_like.contrib.shared.outbox.store.Database`."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self._engine = engine
        self.table = table.fullname
        self.vendor = engine.dialect.name
        self.file = engine.url.database or "" if engine.dialect.name == "sqlite" else ""

    def quote(self, name: str) -> str:
        quote = self._engine.dialect.identifier_preparer.quote_identifier
        return ".".join(map(quote, name.split(".")))  # a schema and its table

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        with self._engine.begin() as connection:

            def run(statement: str, parameters: Sequence[object]) -> Sequence[Any]:
                names = [f"p{number}" for number in range(len(parameters))]
                # Drivers differ in the marks of parameters, and in the types of times.
                times = [
                    bindparam(name, type_=DateTime(timezone=True))
                    for name, value in zip(names, parameters, strict=True)
                    if isinstance(value, datetime)
                ]
                prepared = text(statement.replace("%s", "{}").format(*(f":{name}" for name in names)))
                found = connection.execute(prepared.bindparams(*times), dict(zip(names, parameters, strict=True)))
                return found.all() if found.returns_rows else ()

            yield run

    def now(self, offset: float = 0.0) -> object:
        return now() + timedelta(seconds=offset)

    def age(self, time: Any) -> float:
        time = datetime.fromisoformat(time) if isinstance(time, str) else time
        if time.tzinfo is None:  # SQLite
            time = time.replace(tzinfo=UTC)
        return float((now() - time).total_seconds())

    def connect(self) -> tuple[Any, Callable[[], object]]:
        pooled = self._engine.raw_connection()
        raw: Any = pooled.driver_connection
        pooled.detach()  # the pool would take it back
        raw.autocommit = True
        return raw, pooled.close

    def refresh(self) -> None:
        """Nothing: the pool drops connections that are broken."""

    def reset(self) -> None:
        """Likewise."""
