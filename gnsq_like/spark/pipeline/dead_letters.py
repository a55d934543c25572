"""Rejected messages as dead letters, with the reason why each does not fit.

This runs on executors, for the few rejected rows: in a plain UDF, since pyspark's faster kinds need pandas. Letters
have the envelope of ``gnsq_like.deadletter``.

Spark decides whether a body fits (``parse``), and knows which value is none of its type. What is wrong with the JSON
around the values, :func:`structure_of` looks for. Reasons name fields and types, but no values, so that there are few
different ones and they can be counted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from gnsq_like.deadletter import DeadLetter, pack_envelope

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The result of :class:`DescribeRejected`, as Spark's DDL.
DDL = "reason STRING, letter BINARY"
#: The reason if no other one is found.
GENERAL = "it does not fit the schema"


class DescribeRejected:
    """A function for a UDF: returns the reason and the dead letter of one message.

    :param schema: None for bodies that are kept as they are
    :param most_bytes: the size limit of the dead-letter topic; longer letters have their body cut
    :param rejected: where the whole body is kept
    """

    def __init__(self, schema: StructType | None, most_bytes: int, rejected: str) -> None:
        self._schema = schema
        self._most_bytes = most_bytes
        self._rejected = rejected

    def __call__(
        self,
        message_id: str,
        body: bytes,
        timestamp_us: int,
        attempts: int,
        topic: str,
        channel: str,
        nsqd_address: str,
        seen_us: int,
        why: str,
    ) -> tuple[str, bytes]:
        structure = structure_of(bytes(body), self._schema) if self._schema is not None else ""
        letter = DeadLetter(
            topic=topic,
            channel=channel,
            nsqd_address=nsqd_address,
            id=message_id,
            attempts=attempts,
            timestamp_ns=timestamp_us * 1000,
            given_up_ns=seen_us * 1000,
            body=bytes(body),
            reason=structure or why or GENERAL,
        )
        return letter.reason, pack_within(self._most_bytes, letter, self._rejected)


def pack_within(most_bytes: int, letter: DeadLetter, rejected: str) -> bytes:
    """Pack a letter into at most ``most_bytes``. The body is cut if necessary, and the reason says so then."""
    packed = pack_envelope(letter)
    size = len(letter.body)
    keep = size
    while len(packed) > most_bytes and keep:
        # An envelope can be several times as long as its body, but never shorter.
        keep = min(keep // 2, most_bytes)
        why = f"{letter.reason} (the first {keep} of {size} bytes; the whole is in {rejected})"
        packed = pack_envelope(dataclasses.replace(letter, body=letter.body[:keep], reason=why))
    return packed


def structure_of(body: bytes, schema: StructType) -> str:
    """What is wrong with a body apart from the values of its fields; "" if nothing is found."""
    try:
        value = json.loads(body.decode("utf-8"), parse_int=str)  # Python refuses to read long numbers
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except json.JSONDecodeError as exc:
        return f"it is not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}"
    except RecursionError:
        return "it is nested too deeply"
    if not isinstance(value, dict):
        return "it is JSON, but not an object"
    return next(_wrong_fields(value, schema, ""), "")


def _wrong_fields(value: Mapping[str, Any], schema: StructType, path: str) -> Iterator[str]:
    for field in schema.fields:
        name = f"{path}{field.name}"
        if value.get(field.name) is not None:
            yield from _wrong_parts(value[field.name], field.dataType, name)
        elif not field.nullable:
            yield f"field {name} is {'null' if field.name in value else 'missing'}"


def _wrong_parts(value: Any, kind: DataType, name: str) -> Iterator[str]:
    if isinstance(kind, ArrayType):
        if not isinstance(value, list):
            yield f"field {name} is not an array"
            return
        for each in value:
            if each is not None:
                yield from _wrong_parts(each, kind.elementType, f"{name}[]")
    elif isinstance(kind, StructType | MapType):
        if not isinstance(value, dict):
            yield f"field {name} is not an object"
        elif isinstance(kind, StructType):
            yield from _wrong_fields(value, kind, f"{name}.")
        else:
            for each in value.values():
                if each is not None:
                    yield from _wrong_parts(each, kind.valueType, f"{name}{{}}")
