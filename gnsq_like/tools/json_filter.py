"""Which JSON messages are passed on, and what of them, as NSQ's nsq_to_nsq decides (docs/internals 6.6)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_like.errors import NSQError


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
    """Passes messages on that are JSON objects and have what is required."""

    #: Only objects that have this field; empty for all.
    required_field: str = ""
    #: Only those in which that field has this value, as text or as a number; empty for any.
    required_value: str = ""
    #: Only these fields of an object are passed on; empty for the message as it is.
    kept_fields: Sequence[str] = ()

    @property
    def is_needed(self) -> bool:
        """Whether messages have to be looked into at all."""
        return bool(self.required_field or self.kept_fields)

    def passed(self, body: bytes) -> bytes | None:
        """The body to pass on; None to drop the message. Never switches.

        :raises FieldMissing: a value is required of a field that is missing
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
