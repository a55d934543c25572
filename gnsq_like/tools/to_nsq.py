"""Topics into other nsqds, as NSQ's nsq_to_nsq does: ``gnsq-like to-nsq``."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gevent
from gevent.event import Event

from gnsq_like import Message, Producer
from gnsq_like.errors import NotSent, PublishError
from gnsq_like.tools.consuming import Consumption
from gnsq_like.tools.host_pool import HostPool
from gnsq_like.tools.json_filter import JSONFilter
from gnsq_like.tools.sources import Source
from gnsq_like.tools.status import Statuses
from gnsq_like.wire.names import encode_topic

logger = logging.getLogger(__name__)

#: The message's time that is left when it is tried at no further destination.
_LAST_MOMENT = 5.0


def copy_topics(
    source: Source,
    topics: Sequence[str],
    destinations: Sequence[str],
    *,
    stop: Event,
    channel: str = "to-nsq",
    destination_topic: str | None = None,
    mode: str = "hostpool",
    json_filter: JSONFilter | None = None,
    producer_options: Mapping[str, Any] | None = None,
    status_every: int = 250,
) -> int:
    """Publish the messages of topics to other nsqds until ``stop`` is set. May switch.

    Each message goes to one of the destinations, and is finished after its OK. If that cannot be reached, the others
    are tried; if none can, or the outcome is unknown, the message is requeued, with backoff.

    :param destinations: TCP addresses of nsqds
    :param destination_topic: None for the topic of each message
    :param mode: see :mod:`gnsq_like.tools.host_pool`
    :param json_filter: which messages are passed on, and what of them; the others are finished
    :param producer_options: of the Producer of each destination
    :param status_every: messages between two lines in the log; 0 for none
    :returns: the number of messages passed on
    :raises InvalidName, InvalidAddress, InvalidOption: if an argument is invalid
    :raises Unreachable: none of the source's nsqds could be reached
    """
    if destination_topic is not None:
        encode_topic(destination_topic)
    options = {"batching": True, "own_thread": False, **(producer_options or {})}
    with _Copier(destinations, destination_topic, mode, json_filter or JSONFilter(), options, status_every) as copier:
        consumption = Consumption(source, stop)
        try:
            for topic in topics:
                consumption.add(topic, channel, copier.copy)
            consumption.wait()
        finally:
            consumption.end()
    return copier.statuses.count


class _Copier:
    """Publishes messages to the destinations."""

    def __init__(
        self,
        destinations: Sequence[str],
        topic: str | None,
        mode: str,
        json_filter: JSONFilter,
        options: Mapping[str, Any],
        status_every: int,
    ) -> None:
        self._topic = topic
        self._filter = json_filter
        self._pool = HostPool(destinations, mode)
        self._producers = {address: Producer(address, **options) for address in destinations}
        self.statuses = Statuses(status_every, list(self._producers))

    def __enter__(self) -> _Copier:
        return self

    def __exit__(self, *_exception: object) -> None:
        gevent.joinall([gevent.spawn(producer.close) for producer in self._producers.values()])

    def copy(self, message: Message) -> None:
        """The Reader's handler. May switch."""
        body = self._filter.passed(message.body)
        if body is None:
            logger.debug("message %s is not passed on", message.id)
            return
        topic = self._topic or message.topic
        tried: set[str] = set()
        while True:
            began = time.monotonic()
            address = self._pool.get(began)
            tried.add(address)
            try:
                self._producers[address].publish(topic, body)
            except PublishError as exc:
                now = time.monotonic()
                self._pool.failed(address, now)
                # Sent nowhere, it can go elsewhere without becoming two.
                if not isinstance(exc, NotSent) or len(tried) == len(self._producers) or self._is_late(message, now):
                    raise
                continue
            seconds = time.monotonic() - began
            self._pool.succeeded(address, seconds)
            self.statuses.add(address, seconds)
            return

    def _is_late(self, message: Message, now: float) -> bool:
        return message.timeout_at - now < _LAST_MOMENT
