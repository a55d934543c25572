"""A task as a message: JSON that any worker of the project, or another program, can read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
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
    #: Seconds since the epoch.
    enqueued_at: float
    #: Not before this, in seconds since the epoch.
    run_after: float | None

    def encode(self) -> bytes:
        """The body of the message.

        :raises TypeError, ValueError: if the arguments are not JSON
        """
        members = {
            "id": self.id,
            "module_path": self.module_path,
            "args": self.args,
            "kwargs": self.kwargs,
            "queue_name": self.queue_name,
            "enqueued_at": _text(self.enqueued_at),
            "run_after": None if self.run_after is None else _text(self.run_after),
        }
        return json.dumps(members, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read the body of a message.

        :raises DecodeError: if it is no task
        """
        try:
            members = json.loads(body)
            after = members["run_after"]
            call = cls(
                id=members["id"],
                module_path=members["module_path"],
                args=members["args"],
                kwargs=members["kwargs"],
                queue_name=members["queue_name"],
                enqueued_at=datetime.fromisoformat(members["enqueued_at"]).timestamp(),
                run_after=None if after is None else datetime.fromisoformat(after).timestamp(),
            )
        except (ValueError, TypeError, KeyError) as exc:
            raise DecodeError("a task", body, repr(exc)) from exc
        texts = (call.id, call.module_path, call.queue_name)
        if not (all(isinstance(each, str) for each in texts) and isinstance(call.args, list)):
            raise DecodeError("a task", body, "a member has the wrong type")
        if not isinstance(call.kwargs, dict):
            raise DecodeError("a task", body, "kwargs is no object")
        return call


def check_value(value: object) -> None:
    """Check a task's return value, which has been through JSON already, for NaN and infinity, which are not JSON.

    :raises ValueError: if it contains one
    """
    json.dumps(value, allow_nan=False)


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
