"""Message bodies as CloudEvents 1.0 in structured JSON, which have room for attributes beside the data.

NSQ's messages have no headers. A body that is a CloudEvent carries the context of a trace, in the attributes of the
extension for distributed tracing, to readers in any language::

    {"specversion":"1.0","id":"4f0c...","source":"shop","type":"orders","time":"2026-01-02T03:04:05.678901Z",
     "datacontenttype":"application/json","traceparent":"00-4bf9...-00f0...-01","data":{"order":7}}

Data that is not JSON is in ``data_base64``. ``gnsq_like.contrib.opentelemetry`` makes and opens them.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

#: The only version there is.
SPECVERSION = "1.0"
_JSON = "application/json"
_REQUIRED = ("id", "source", "type")
_SPACE = frozenset(" \t\n\r")

_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class CloudEvent:
    """A CloudEvent.

    :ivar data: the content as bytes: JSON as it stands in the event, text in UTF-8, or what ``data_base64`` encodes
    :ivar attributes: all other members, such as ``id`` and ``traceparent``
    """

    data: bytes
    attributes: Mapping[str, Any]


def pack(data: bytes, *, is_json: bool, source: str, type: str, extensions: Mapping[str, str]) -> bytes:
    """The JSON of a new event, with an id and the time. Pure but for these two.

    :param is_json: whether the data is JSON in UTF-8, which becomes the event's ``data`` unchanged
    :param extensions: further attributes
    """
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    attributes = {
        "specversion": SPECVERSION,
        "id": str(uuid.uuid4()),
        "source": source,
        "type": type,
        "time": now,
        "datacontenttype": _JSON if is_json else "application/octet-stream",
        **extensions,
    }
    head = json.dumps(attributes, separators=(",", ":")).encode()[:-1]
    if is_json:
        return b'%b,"data":%b}' % (head, data)
    return b'%b,"data_base64":"%b"}' % (head, base64.b64encode(data))


def unpack(body: bytes) -> CloudEvent | None:
    """The event that a body is; None if it is anything else. Pure."""
    if body.lstrip()[:1] != b"{" or b'"specversion"' not in body:
        return None
    try:
        return _event(dict(_members(body.decode())))
    except (ValueError, RecursionError):
        return None


def is_json(data: bytes) -> bool:
    """Whether data is JSON in UTF-8 as the standard has it, without NaN. Pure."""
    try:
        json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


def _event(members: dict[str, tuple[Any, str]]) -> CloudEvent | None:
    attributes = {name: value for name, (value, _) in members.items() if name not in ("data", "data_base64")}
    if attributes.get("specversion") != SPECVERSION:
        return None
    if not all(isinstance(value := attributes.get(name), str) and value for name in _REQUIRED):
        return None
    if "data_base64" in members:
        encoded, _ = members["data_base64"]
        data = base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    elif "data" in members:
        data = _text(*members["data"], content_type=str(attributes.get("datacontenttype") or _JSON))
    else:
        data = b""
    return None if data is None else CloudEvent(data, attributes)


def _text(value: Any, raw: str, content_type: str) -> bytes:
    """``data`` as bytes: a string is the text itself, unless the type is JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    is_text = isinstance(value, str) and not kind.endswith(("/json", "+json"))
    return (value if is_text else raw).encode()


def _members(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """The members of a JSON object with their values, parsed and as they stand; so that no digit of data is lost.

    :raises ValueError: if it is no JSON object
    """
    at = _after(text, 0, "{")
    while text[at : at + 1] != "}":
        name, at = _decode(text, at)
        if not isinstance(name, str):
            raise ValueError("the name of a member is no string")
        start = _after(text, at, ":")
        value, at = _decode(text, start)
        yield name, (value, text[start:at])
        at = _skip(text, at)
        if text[at : at + 1] != "}":
            at = _after(text, at, ",")
            if text[at : at + 1] == "}":
                raise ValueError("a comma too many")
    if _skip(text, at + 1) != len(text):
        raise ValueError("there is more after the object")


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in _SPACE:
        at += 1
    return at


def _after(text: str, at: int, sign: str) -> int:
    """The position of what follows a sign and spaces."""
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign} is missing")
    return _skip(text, at + 1)
