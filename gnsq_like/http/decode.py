"""Decodes a daemon's HTTP responses, and checks their fields; what breaks the promises of its API is ``Malformed``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

_R = TypeVar("_R")
_T = TypeVar("_T", str, int)
_Item = TypeVar("_Item")

_NAMES = {str: "text", int: "a whole number"}
#: In JSON, a surrogate. Half of a pair is text to Python, but cannot be written anywhere.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Malformed(Exception):
    """A response is malformed; the text says how. Never leaves this package's clients."""


def json_of(body: bytes) -> Any:
    """The value of a JSON text."""
    try:
        value = json.loads(body)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON") from None
    return value


def object_of(body: bytes) -> dict[str, object]:
    """The value of a JSON text that must be an object."""
    value = json_of(body)
    if not isinstance(value, dict):
        raise Malformed("a JSON object was expected")
    return value


def text_of(body: bytes) -> str:
    """Text; bytes that are not UTF-8 are replaced."""
    return body.decode("utf-8", "replace")


def line_of(body: bytes) -> str:
    """The beginning of a text as one line, for an error."""
    return " ".join(text_of(body[:1000]).split())[:200]


def value_of(record: Mapping[str, object], name: str, kind: type[_T], default: _T | None = None) -> _T:
    """A field, of this type; ``default`` if it is missing."""
    value = record.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Malformed(f'"{name}" is not {_NAMES[kind]}')
    return value


def list_of(record: Mapping[str, object], name: str, kind: type[_Item]) -> list[_Item]:
    """A field that is a list, each of its items of this type; empty for null, which is Go's empty list."""
    value = record.get(name, ...)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise Malformed(f'"{name}" is not a list of {kind.__name__}')
    return value


def record_of(cls: type[_R], record: Mapping[str, object], **others: object) -> _R:
    """A dataclass made of a record's fields of the same names, which are text or whole numbers.

    :param others: values of its other fields; a field that the record lacks has its default
    """
    for each in fields(cls):  # type: ignore[arg-type]
        if each.name not in others and (each.name in record or each.default is MISSING):
            is_text = each.type.startswith("str")
            others[each.name] = value_of(record, each.name, str) if is_text else value_of(record, each.name, int)
    return cls(**others)
