"""Publishing from Django: one Producer for the process, which sends after the transaction has committed.

A common mistake is a message about a row that is not yet committed, or never will be. So ``publish`` checks and
encodes at once, while the caller is in the traceback, and sends when the open transaction has committed; without a
transaction, at once.

The Producer is made at the first publish. It survives a fork, and all threads and greenlets share it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from gnsq_like.contrib.django import conf
from gnsq_like.contrib.shared.outbox.rows import NewRows, check_unused
from gnsq_like.errors import InvalidOption

if TYPE_CHECKING:
    from gnsq_like import Producer
    from gnsq_like.testing import Published

#: The Producer of this process under "producer", once it is made.
_made: dict[str, Producer[Any]] = {}
#: The open recordings, the innermost last: while there is one, every new Producer records.
_outboxes: list[list[Published]] = []


def publish(
    topic: str,
    body: object,
    *,
    defer: float | None = None,
    timeout: float | None = None,
    on_commit: bool = True,
    using: str | None = None,
    outbox: bool = False,
    key: str | None = None,
    envelope: bool | None = None,
) -> None:
    """Publish one message when the open transaction has committed; without a transaction, now. May block, or switch.

    Without a transaction nsqd has the message when this returns. With one it has the message when the outermost
    ``atomic`` block has ended without an error; a rollback publishes nothing.

    :param topic: created by nsqd if it does not exist
    :param body: bytes are sent unchanged; anything else is encoded by the setting ENCODER, by default as Django's JSON
        (with dates, Decimal, UUID)
    :param defer: seconds until it is delivered
    :param timeout: seconds in all; the setting PUBLISH_TIMEOUT (2) if not given
    :param on_commit: False publishes now, and even if the transaction is rolled back
    :param using: the database of the transaction
    :param outbox: insert it into the outbox in that database, as a part of the transaction; ``nsq_relay`` publishes it,
        at least once, if the transaction commits. Does not wait for nsqd; ``defer`` has no upper limit
    :param key: with outbox: messages of a topic with the same key are numbered, and published in the order in which
        their transactions commit, which wait for each other
    :param envelope: with outbox: whether the message gets an envelope with its id, key and number, see
        :class:`gnsq_like.contrib.outbox.Event`; by default if it has a key
    :raises InvalidName, InvalidBody, InvalidOption: at once
    :raises PublishError: when nsqd has not confirmed it, see :meth:`gnsq_like.Producer.publish`; at once while every
        nsqd is unreachable, unless FAIL_FAST is False; in a transaction it is raised by the end of the ``atomic``
        block, after the commit
    :raises ImproperlyConfigured: for wrong settings
    """
    if outbox:
        _into_outbox(topic, [body], on_commit, key, defer, envelope, using)
        return
    check_unused(key, envelope)
    encoded = producer().check(topic, body, defer=defer)
    _when(on_commit, using, partial(_send, topic, encoded, defer, timeout))


async def apublish(topic: str, body: object, *, defer: float | None = None, timeout: float | None = None) -> None:
    """Publish one message from an asynchronous view, and wait for nsqd's OK without blocking the event loop.

    Otherwise like :func:`publish`; but asynchronous code has no transactions, so nothing waits for a commit. See
    :meth:`gnsq_like.Producer.apublish` for the effect of a cancelled task.
    """
    await producer().apublish(topic, body, defer=defer, timeout=timeout)


def multi_publish(
    topic: str,
    bodies: Iterable[object],
    *,
    timeout: float | None = None,
    on_commit: bool = True,
    using: str | None = None,
    outbox: bool = False,
    key: str | None = None,
    envelope: bool | None = None,
) -> None:
    """Publish several messages to a topic, many with one command; otherwise like :func:`publish`."""
    if outbox:
        _into_outbox(topic, bodies, on_commit, key, None, envelope, using)
        return
    check_unused(key, envelope)
    encoded = [producer().check(topic, body) for body in bodies]
    _when(on_commit, using, partial(_send_many, topic, encoded, timeout))


def producer() -> Producer[Any]:
    """The Producer of this process, which connects at its first publish and ignores transactions.

    :raises ImproperlyConfigured: for wrong settings
    """
    made = _made.get("producer")
    metrics = conf.metrics()
    if made is None:
        # Two threads may get here at once: all get the same Producer, and an unused one is harmless.
        made = _made.setdefault("producer", make_producer())
        if metrics is not None:
            metrics.watch_producer(made)
    if metrics is not None:
        metrics.keep_writing()
    return made


def made_producers() -> list[Producer[Any]]:
    """The Producer of this process, if it is made."""
    return list(_made.values())


def make_producer() -> Producer[Any]:
    """Another Producer with these settings.

    :raises ImproperlyConfigured: for wrong settings
    """
    settings = conf.settings()
    try:
        if not (_outboxes or settings.own["RECORD"]):
            tracing = conf.tracing()
            return settings.make_producer(_json) if tracing is None else settings.make_producer(_json, tracing.producer)
        from gnsq_like.testing import RecordingProducer

        recorder = settings.make_producer(_json, RecordingProducer)
    except InvalidOption as exc:
        raise ImproperlyConfigured(str(exc)) from exc
    if _outboxes:
        recorder.outbox = _outboxes[-1]
    return recorder


@contextmanager
def recording() -> Iterator[list[Published]]:
    """During the block, messages published in this process are appended to the list and not sent.

    Settings may be overridden meanwhile (``override_settings``), and apply; messages are still recorded.
    """
    outbox: list[Published] = []
    _outboxes.append(outbox)
    before = _made.pop("producer", None)
    try:
        yield outbox
    finally:
        _outboxes.pop()
        _made.pop("producer", None)
        if before is not None:
            _made["producer"] = before


def _json(value: object) -> bytes:
    return json.dumps(value, cls=DjangoJSONEncoder, separators=(",", ":"), ensure_ascii=False).encode()


def _when(on_commit: bool, using: str | None, send: Callable[[], None]) -> None:
    if on_commit:
        connection = transaction.get_connection(using)
        # Without a connection there is no transaction, and on_commit() would open a connection.
        if connection.in_atomic_block or connection.connection is not None:
            connection.on_commit(send)
            return
    send()


def _into_outbox(
    topic: str,
    bodies: Iterable[object],
    on_commit: bool,
    key: str | None,
    defer: float | None,
    envelope: bool | None,
    using: str | None,
) -> None:
    if not apps.is_installed("gnsq_like.contrib.django.outbox"):
        raise ImproperlyConfigured('outbox=True: add "gnsq_like.contrib.django.outbox" to INSTALLED_APPS, and migrate')
    from gnsq_like.contrib.django.outbox.database import add

    if not on_commit:
        raise InvalidOption("on_commit", on_commit, "with outbox=True the message is a part of the transaction")
    records = bool(_outboxes or conf.settings().own["RECORD"])
    new = NewRows(
        topic,
        bodies,
        key=key,
        defer=defer,
        envelope=envelope,
        check=producer().check,
        tracing=None if records else conf.tracing(),
    )
    rows = add(new, using)
    if records:
        # As if a relay had published them; in a test there is none.
        _when(True, using, partial(_send_many, topic, [row.body for row in rows], None))


def _send(topic: str, body: bytes, defer: float | None, timeout: float | None) -> None:
    producer().publish(topic, body, defer=defer, timeout=timeout)


def _send_many(topic: str, bodies: list[bytes], timeout: float | None) -> None:
    producer().multi_publish(topic, bodies, timeout=timeout)


def setting_has_changed(*, setting: str, **_: object) -> None:
    """For Django's signal ``setting_changed``: a test has overridden ``NSQ``."""
    if setting == "NSQ":
        conf.settings.cache_clear()
        if (made := _made.pop("producer", None)) is not None:
            made.close()
