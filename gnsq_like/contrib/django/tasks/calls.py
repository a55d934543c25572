"""A task as a message: JSON that any worker of the project, or another program, can read."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from types import NoneType
from typing import Self

from gnsq_like.errors import DecodeError


@dataclass(frozen=True)
class Call:
    """What a message says about a task."""

    #: Of the result.
    id: str
    module_path: str
    args: list[object]
    kwargs: dict[str, object]
    queue_name: str
    #: Seconds since the epoch; in JSON, ISO 8601.
    enqueued_at: float
    #: Not before this, likewise.
    run_after: float | None

    def encode(self) -> bytes:
        """The body of the message.

        :raises TypeError, ValueError: if the arguments are not JSON
        """
        times = {name: None if (at := getattr(self, name)) is None else _text(at) for name in _TIMES}
        return json.dumps(vars(self) | times, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read the body of a message.

        :raises DecodeError: if it is no task
        """
        try:
            members = json.loads(body)
            found = {each.name: members[each.name] for each in fields(cls)}
            for name, kinds in _KINDS.items():
                if not isinstance(found[name], kinds):
                    raise TypeError(f"{name} is of the wrong type")
            for name in _TIMES:
                if found[name] is not None:
                    found[name] = datetime.fromisoformat(found[name]).timestamp()
            return cls(**found)
        except (ValueError, TypeError, KeyError) as exc:
            raise DecodeError("a task", body, repr(exc)) from exc


_TIMES = ("enqueued_at", "run_after")
#: The types that the members have in JSON.
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "module_path", "queue_name", "enqueued_at"), str),
    **{"args": list, "kwargs": dict, "run_after": (str, NoneType)},
}


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
