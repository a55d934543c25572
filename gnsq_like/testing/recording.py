"""A Producer that records publishes and sends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gevent.event import AsyncResult

from gnsq_like.errors import NotRunning
from gnsq_like.producer.producer import Producer

#: A Producer needs an address; this one is never connected to.
_NOWHERE = "127.0.0.1:4150"


@dataclass(frozen=True)
class Published:
    """One message as it would have been sent to nsqd."""

    topic: str
    body: bytes
    #: Seconds; None for immediate delivery.
    defer: float | None = None

    def json(self) -> Any:
        """The body, decoded as JSON."""
        return json.loads(self.body)


class RecordingProducer(Producer[Any]):
    """Keeps published messages in ``outbox``, checked and encoded as a Producer does.

    Takes a Producer's arguments; addresses may be left out. May be used from any thread; nothing here switches.
    """

    def __init__(self, nsqd_tcp_addresses: str | Iterable[str] = (), **options: Any) -> None:
        if not nsqd_tcp_addresses and not options.get("lookupd_http_addresses"):
            nsqd_tcp_addresses = _NOWHERE
        super().__init__(nsqd_tcp_addresses, **options)
        #: The messages published so far, the oldest first; may be cleared.
        self.outbox: list[Published] = []

    def publish(self, topic: str, body: object, *, defer: float | None = None, timeout: float | None = None) -> None:
        """Record one message; raises the errors that Producer.publish raises before it sends."""
        self._check(timeout)
        self.outbox.append(Published(topic, self.check(topic, body, defer=defer), defer))

    async def apublish(
        self, topic: str, body: object, *, defer: float | None = None, timeout: float | None = None
    ) -> None:
        """Record one message."""
        self.publish(topic, body, defer=defer, timeout=timeout)

    def publish_async(
        self, topic: str, body: object, *, defer: float | None = None, timeout: float | None = None
    ) -> AsyncResult[None]:
        """Record one message; the result is set already."""
        self.publish(topic, body, defer=defer, timeout=timeout)
        result: AsyncResult[None] = AsyncResult()
        result.set(None)
        return result

    def multi_publish(
        self, topic: str, bodies: Iterable[object], *, atomic: bool = False, timeout: float | None = None
    ) -> None:
        """Record several messages."""
        self._check(timeout)
        for chunk in self._encoder.chunks(bodies, atomic):
            self._encoder.mpub(topic, chunk)
            self.outbox.extend(Published(topic, body) for body in chunk)

    def _check(self, timeout: float | None) -> None:
        self._seconds(timeout)
        if self._closed:
            raise NotRunning("the Producer is closed")
