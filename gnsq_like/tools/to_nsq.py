"""Topics into other nsqds, as NSQ's nsq_to_nsq does: ``gnsq-like to-nsq``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import gevent
from gevent.event import Event

from gnsq_like import Message, Producer
from gnsq_like.errors import NotSent
from gnsq_like.tools.consuming import Consumption
from gnsq_like.tools.forwarding import Forwarding
from gnsq_like.tools.json_filter import JSONFilter
from gnsq_like.tools.sources import Source
from gnsq_like.wire.names import encode_topic

logger = logging.getLogger(__name__)


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
    options = {"batching": True, "fail_fast": True, "own_thread": False, **(producer_options or {})}
    producers = {address: Producer(address, **options) for address in destinations}
    forwarding = Forwarding(
        destinations,
        mode,
        stop=stop,
        is_unsent=lambda exc: isinstance(exc, NotSent),
        status_every=status_every,
    )
    passed = (json_filter or JSONFilter()).passed

    def copy(message: Message) -> None:
        body = passed(message.body)
        if body is None:
            logger.debug("message %s is not passed on", message.id)
            return
        topic = destination_topic or message.topic
        forwarding.to_one(message, lambda address: producers[address].publish(topic, body))

    consumption = Consumption(source, stop)
    try:
        for topic in topics:
            consumption.add(topic, channel, copy)
        consumption.wait()
    finally:
        consumption.end()
        # Each message has been answered, so nothing is waited for.
        gevent.joinall([gevent.spawn(producer.close, 0.0) for producer in producers.values()])
    return forwarding.count
