"""``Event``: what a consumer reads from a message that was published through an outbox with an envelope.

::

    event = Event.of(message.body)
    if event.sequence <= last_sequence_of(event.key):
        return                                          # a copy, or one that was overtaken

NSQ keeps no order: messages are requeued, come from several nsqds, and are handled side by side. The outbox publishes
messages of a key in order, and numbers them without gaps, so that a consumer can detect copies and gaps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Self

from gnsq_like.contrib.shared.envelope import unpack
from gnsq_like.errors import DecodeError


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

        :raises DecodeError: if it is not such an envelope
        """
        envelope = unpack(body)
        if envelope is None or not envelope.is_of_outbox:
            raise DecodeError("an outbox's envelope", body, "it is no CloudEvent from an outbox")
        known = envelope.attributes
        sequence = known.get("sequence")
        try:
            return cls(
                id=known["id"],
                key=known.get("partitionkey", ""),
                sequence=None if sequence is None else int(sequence),
                data=json.loads(envelope.data) if known.get("datacontenttype") == "application/json" else envelope.data,
            )
        except (ValueError, TypeError) as exc:
            raise DecodeError("an outbox's envelope", body, repr(exc)) from exc
