"""Topics copied to other nsqds, with filters for JSON messages, as NSQ's nsq_to_nsq does (docs/internals 6.6)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from gnsq_like import Message, Producer
from gnsq_like.errors import NotSent, NSQError
from gnsq_like.tools.consuming import Consumption
from gnsq_like.tools.forwarding import Forwarding
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
    are tried; if none can be reached, or the outcome is unknown, the message is requeued, with backoff.

    :param destinations: TCP addresses of nsqds
    :param destination_topic: None for the topic of each message
    :param mode: see :mod:`gnsq_like.tools.host_pool`
    :param json_filter: which messages, and which of their fields, are passed on; other messages are finished
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


class FieldMissing(NSQError):
    """The field whose value is required is missing.

    :ivar field: its name
    """

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field

    def __str__(self) -> str:
        return f'the message has no field "{self.field}", whose value is required'


@dataclass(frozen=True)
class JSONFilter:
    """Passes on JSON objects that meet the requirements."""

    #: Only objects that have this field; empty for all.
    required_field: str = ""
    #: Only those in which that field has this value, as text or as a number; empty for any.
    required_value: str = ""
    #: Only these fields of an object are passed on; empty for the message as it is.
    kept_fields: Sequence[str] = ()

    @property
    def is_needed(self) -> bool:
        """Whether messages have to be parsed at all."""
        return bool(self.required_field or self.kept_fields)

    def passed(self, body: bytes) -> bytes | None:
        """The body to pass on; None to drop the message. Never switches.

        :raises FieldMissing: the field of the required value is missing
        """
        if not self.is_needed:
            return body
        try:
            found = json.loads(body.decode(errors="replace"), parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        if found is None:
            found = {}
        if not isinstance(found, dict) or (self.required_field and not self._has_required(found)):
            return None
        if not self.kept_fields:
            return body
        kept = {name: _plain(found[name]) for name in self.kept_fields if name in found}
        return json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode(errors="replace")

    def _has_required(self, found: dict[str, Any]) -> bool:
        if self.required_field not in found:
            if self.required_value:
                raise FieldMissing(self.required_field)
            return False
        value = found[self.required_field]
        if not self.required_value:
            return True
        if isinstance(value, str):
            return value == self.required_value
        try:
            return not isinstance(value, bool) and float(value) == float(self.required_value)
        except (TypeError, ValueError, OverflowError):
            return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _plain(value: object) -> Any:
    """A value in which whole floats are integers, as Go prints them."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else value
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
