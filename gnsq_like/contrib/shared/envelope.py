"""Envelopes around message bodies, which have room for the trace, and for an outbox's key and sequence number.

NSQ's messages have no headers. An envelope is a CloudEvent 1.0 in structured JSON, so readers in any language have a
library for it::

    {"specversion":"1.0","id":"4f0c...","source":"shop","type":"orders","time":"2026-01-02T03:04:05.678901Z",
     "datacontenttype":"application/json","traceparent":"00-4bf9...-00f0...-01","data":{"order":7}}

Data that is not JSON is in ``data_base64``. Only envelopes that :func:`pack` has made are opened, with the data as the
last member, so that it comes back byte for byte: CloudEvents of other programs are bodies like any other.

``partitionkey`` and ``sequence`` are CloudEvents' own extensions; sequence numbers are padded, because CloudEvents
compares them as text. The source distinguishes an outbox's envelope from one that only carries a trace.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_BEGINNING = b'{"specversion":"1.0","id":"'
_REQUIRED = ("id", "source", "type")
#: No attribute can contain these: in JSON, quotes within a text follow a backslash.
_JSON, _BASE64 = b',"data":', b',"data_base64":'
_DIGITS = 19  # of the largest 64-bit number


@dataclass(frozen=True)
class Envelope:
    """An opened envelope.

    :ivar data: the bytes that were packed
    :ivar attributes: all other members, such as ``id`` and ``traceparent``
    """

    data: bytes
    attributes: Mapping[str, Any]

    @property
    def is_of_outbox(self) -> bool:
        """Whether an outbox made it."""
        return bool(self.attributes["source"] == _outbox_of(self.attributes["type"]))


def pack(data: bytes, *, is_json: bool, source: str, type: str, extensions: Mapping[str, str]) -> bytes:
    """A new envelope, with an id and the time. Pure but for these two.

    :param is_json: whether the data is JSON in UTF-8, which becomes ``data`` unchanged
    :param extensions: further attributes
    """
    attributes = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": source,
        "type": type,
        "time": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json" if is_json else "application/octet-stream",
        **extensions,
    }
    head = json.dumps(attributes, separators=(",", ":")).encode()[:-1]
    if is_json:
        return b"%b%b%b}" % (head, _JSON, data)
    return b'%b%b"%b"}' % (head, _BASE64, base64.b64encode(data))


def pack_for_outbox(
    body: bytes, *, is_json: bool, topic: str, key: str, sequence: int | None, extensions: Mapping[str, str]
) -> bytes:
    """An outbox's envelope around an encoded body. Its size does not depend on the number.

    :param is_json: whether the body may stand in the JSON as it is
    :param extensions: further attributes, such as those of a trace
    """
    own = {"partitionkey": key} if key else {}
    if sequence is not None:
        own["sequence"] = f"{sequence:0{_DIGITS}}"
    return pack(body, is_json=is_json, source=_outbox_of(topic), type=topic, extensions={**own, **extensions})


def _outbox_of(topic: object) -> str:
    return f"/nsq/{topic}"


def unpack(body: bytes) -> Envelope | None:
    """Open an envelope; None for any other body. Pure."""
    if not (body.startswith(_BEGINNING) and body.endswith(b"}")):
        return None
    head, found, rest = body.partition(_JSON)
    if not found:
        head, _, rest = body.partition(_BASE64)
    data = rest[:-1]
    try:
        attributes, value = json.loads(head.decode() + "}"), json.loads(data.decode())
        if not found:
            data = base64.b64decode(value, validate=True)
    except (ValueError, TypeError, RecursionError):
        return None
    if not all(isinstance(attributes.get(name), str) for name in _REQUIRED):
        return None
    return Envelope(data, attributes)


def is_json(data: bytes) -> bool:
    """Whether data is JSON in UTF-8 as the standard has it, without NaN. Pure."""
    try:
        json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)
