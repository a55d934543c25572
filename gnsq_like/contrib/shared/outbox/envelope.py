"""The envelope of an outbox message: id, key and sequence number, as a CloudEvent 1.0 in structured JSON.

NSQ has no headers, so they are in the body. ``partitionkey`` and ``sequence`` are CloudEvents' own extensions; sequence
numbers are padded, because CloudEvents compares them as text.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import uuid4

from gnsq_like.errors import DecodeError

_DIGITS = 19  # of the largest 64-bit number


def wrap(body: bytes, *, is_json: bool, topic: str, key: str, sequence: int | None, time: datetime) -> bytes:
    """The envelope around an encoded body.

    :param is_json: whether the body may stand in the JSON as it is
    """
    head: dict[str, str] = {
        "specversion": "1.0",
        "id": str(uuid4()),
        "source": f"/nsq/{topic}",
        "type": topic,
        "time": time.isoformat(timespec="milliseconds"),
    }
    if key:
        head["partitionkey"] = key
    if sequence is not None:
        head["sequence"] = f"{sequence:0{_DIGITS}}"
    if not is_json:
        head["data_base64"] = base64.b64encode(body).decode()
        return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    head["datacontenttype"] = "application/json"
    start = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    return start.removesuffix(b"}") + b',"data":' + body + b"}"


def is_json(body: bytes) -> bool:
    """Whether these bytes are a JSON value in UTF-8."""
    try:
        json.loads(body.decode())
    except ValueError:
        return False
    return True


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
        try:
            head = json.loads(body)
            data = base64.b64decode(head["data_base64"], validate=True) if "data_base64" in head else head["data"]
            sequence = head.get("sequence")
            return cls(
                id=str(head["id"]),
                key=str(head.get("partitionkey", "")),
                sequence=None if sequence is None else int(sequence),
                data=data,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise DecodeError("an outbox's envelope", body, repr(exc)) from exc
