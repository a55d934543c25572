"""For consumers of messages that were published through an outbox with an envelope, in any framework.

::

    event = Event.of(message.body)
    if event.sequence <= last_sequence_of(event.key):
        return                                          # a copy, or one that was overtaken

NSQ keeps no order: messages are requeued, come from several nsqds, and are handled side by side. The outbox publishes
messages of a key in order, and numbers them without gaps, so that a consumer can tell.

The envelope is a CloudEvent 1.0 in structured JSON, because NSQ has no headers. ``partitionkey`` and ``sequence`` are
CloudEvents' own extensions; sequence numbers are padded, because CloudEvents compares them as text. Envelopes are told
from other events by their source: a Reader that is traced opens those for its handler, but an envelope is left to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gnsq_like.contrib.cloudevents import is_json, pack, unpack
from gnsq_like.errors import DecodeError

__all__ = ["Event", "is_envelope", "is_json", "wrap"]

_DIGITS = 19  # of the largest 64-bit number


def wrap(
    body: bytes, *, is_json: bool, topic: str, key: str, sequence: int | None, extensions: Mapping[str, str]
) -> bytes:
    """The envelope around an encoded body. Its size does not depend on the number.

    :param is_json: whether the body may stand in the JSON as it is
    :param extensions: further attributes, such as those of a trace
    """
    own = {"partitionkey": key} if key else {}
    if sequence is not None:
        own["sequence"] = f"{sequence:0{_DIGITS}}"
    return pack(body, is_json=is_json, source=_source(topic), type=topic, extensions={**own, **extensions})


def _source(topic: object) -> str:
    return f"/nsq/{topic}"


def is_envelope(attributes: Mapping[str, Any]) -> bool:
    """Whether an event with these attributes is an envelope. Pure."""
    return bool(attributes.get("source") == _source(attributes.get("type")))


@dataclass(frozen=True)
class Event:
    """A message that came from an outbox with an envelope: ``Event.of(message.body)``."""

    #: Unique; a message that arrives twice has the same.
    id: str
    #: "" for none.
    key: str
    #: 1, 2, 3 … for the messages of a topic with the same key, in the order of their commits; None without a key.
    sequence: int | None
    #: Decoded JSON, or bytes.
    data: Any

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read a message's body.

        :raises DecodeError: if it is no such envelope
        """
        event = unpack(body)
        if event is None or not is_envelope(event.attributes):
            raise DecodeError("an outbox's envelope", body, "it is no CloudEvent from an outbox")
        known = event.attributes
        sequence = known.get("sequence")
        try:
            return cls(
                id=known["id"],
                key=known.get("partitionkey", ""),
                sequence=None if sequence is None else int(sequence),
                data=json.loads(event.data) if known.get("datacontenttype") == "application/json" else event.data,
            )
        except (ValueError, TypeError) as exc:
            raise DecodeError("an outbox's envelope", body, repr(exc)) from exc
