"""Publishing from Django: one Producer for the process, and nothing before a transaction has committed.

A message about a row that is not there yet, or never will be, is the usual mistake here. So ``publish``
checks and encodes at once, where the caller's line is in the traceback, and sends when the transaction that is
open has committed; outside of one, at once.

The Producer is made at the first publish. It stands a fork, and is shared by all threads and greenlets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from gnsq_like.contrib.django import conf
from gnsq_like.errors import InvalidOption

if TYPE_CHECKING:
    from gnsq_like import Producer
    from gnsq_like.testing import Published

#: The Producer of this process, once there is one.
_made: dict[str, Producer] = {}
#: Of the recordings that are open, the innermost last: while there is one, every Producer made here records.
_outboxes: list[list[Published]] = []


def publish(
    topic: str,
    body: Any,
    *,
    defer: float | None = None,
    timeout: float | None = None,
    on_commit: bool = True,
    using: str | None = None,
) -> None:
    """Publish one message: when the open transaction has committed, or at once if none is open. May block, or switch.

    When it returns outside of a transaction, nsqd has the message. Inside of one that is so when the
    outermost ``atomic`` block has ended without an error; if it rolls back, nothing is published.

    :param topic: created by nsqd if it does not exist
    :param body: bytes are sent as they are; what else is made JSON as Django does (dates, Decimal, UUID), or
        goes through the setting ENCODER
    :param defer: seconds until it is delivered
    :param timeout: seconds in all; the setting PRODUCER_TIMEOUT or TIMEOUT if not given
    :param on_commit: False publishes now, whatever becomes of the transaction
    :param using: the database whose transaction is meant
    :raises InvalidName, InvalidBody, InvalidOption: at once
    :raises PublishError: when nsqd has not confirmed it, see :meth:`gnsq_like.Producer.publish`; after a commit
        from the end of the ``atomic`` block, and the rows are there
    :raises ImproperlyConfigured: for wrong settings
    """
    encoded = producer().check(topic, body, defer=defer)
    _when(on_commit, using, partial(_send, topic, encoded, defer, timeout))


def multi_publish(
    topic: str,
    bodies: Iterable[Any],
    *,
    timeout: float | None = None,
    on_commit: bool = True,
    using: str | None = None,
) -> None:
    """Publish several messages of a topic, many with one command; else as :func:`publish`."""
    encoded = [producer().check(topic, body) for body in bodies]
    _when(on_commit, using, partial(_send_many, topic, encoded, timeout))


def producer() -> Producer:
    """The Producer of this process; it connects at its first publish. It knows nothing of transactions.

    :raises ImproperlyConfigured: for wrong settings
    """
    made = _made.get("producer")
    metrics = conf.metrics()
    if made is None:
        # Two threads may come here at once: making one does nothing, and all get the same.
        made = _made.setdefault("producer", make_producer())
        if metrics is not None:
            metrics.watch_producer(made)
    if metrics is not None:
        metrics.keep_writing()
    return made


def make_producer() -> Producer:
    """Another Producer by the settings.

    :raises ImproperlyConfigured: for wrong settings
    """
    settings = conf.settings()
    try:
        if not (_outboxes or settings.own["RECORD"]):
            return settings.make_producer(_json)
        from gnsq_like.testing import RecordingProducer

        recorder = settings.make_producer(_json, RecordingProducer)
    except InvalidOption as exc:
        raise ImproperlyConfigured(str(exc)) from exc
    if _outboxes:
        recorder.outbox = _outboxes[-1]
    return recorder


@contextmanager
def recording() -> Iterator[list[Published]]:
    """Inside of this block, what is published in this process is appended to the list it gives, and not sent.

    Settings that change meanwhile (``override_settings``) count, and change nothing about that.
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


def _json(value: Any) -> bytes:
    return json.dumps(value, cls=DjangoJSONEncoder, separators=(",", ":"), ensure_ascii=False).encode()


def _when(on_commit: bool, using: str | None, send: Callable[[], None]) -> None:
    if on_commit:
        connection = transaction.get_connection(using)
        # Without a connection there is no transaction. Asking Django to wait for its end would make one.
        if connection.in_atomic_block or connection.connection is not None:
            connection.on_commit(send)
            return
    send()


def _send(topic: str, body: bytes, defer: float | None, timeout: float | None) -> None:
    producer().publish(topic, body, defer=defer, timeout=timeout)


def _send_many(topic: str, bodies: list[bytes], timeout: float | None) -> None:
    producer().multi_publish(topic, bodies, timeout=timeout)


def setting_has_changed(*, setting: str, **_: object) -> None:
    """For Django's signal ``setting_changed``: a test has another NSQ from here on."""
    if setting == "NSQ":
        conf.settings.cache_clear()
        if (made := _made.pop("producer", None)) is not None:
            made.close()
