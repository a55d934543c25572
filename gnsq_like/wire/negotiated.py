"""nsqd's replies to IDENTIFY and AUTH (docs/internals 1.3, 1.4)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gnsq_like.errors import ProtocolError
from gnsq_like.wire import frames

#: The upgrades, by their fields in IDENTIFY and its reply, in the order in which they happen (docs/internals 1.3).
UPGRADES = ("tls_v1", "snappy", "deflate")

#: nsqd's default of max-rdy-count, used if the reply leaves it out (docs/internals 1.6).
DEFAULT_MAX_RDY_COUNT = 2500
#: nsqd's default of msg-timeout in seconds, used if the reply leaves it out (docs/internals 7.1).
DEFAULT_MSG_TIMEOUT = 60.0
#: nsqd's default of deflate_level.
DEFAULT_DEFLATE_LEVEL = 6
#: Older versions count RDY down with each delivery; from this one on it is a level.
_RDY_IS_A_LEVEL_SINCE = (0, 3)


def _json_object(payload: bytes, command: str) -> dict[str, Any]:
    answer: object = None
    with suppress(ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        answer = json.loads(payload)
    if not isinstance(answer, dict):
        raise ProtocolError(f"the reply to {command} is not a JSON object: {payload[:80]!r}")
    return answer


@dataclass(frozen=True, slots=True)
class Negotiated:
    """nsqd's reply to IDENTIFY (docs/internals 1.3); durations in seconds, sizes in bytes."""

    version: str = ""
    max_rdy_count: int = DEFAULT_MAX_RDY_COUNT
    msg_timeout: float = DEFAULT_MSG_TIMEOUT
    max_msg_timeout: float | None = None
    sample_rate: int = 0
    output_buffer_size: int | None = None
    output_buffer_timeout: float | None = None
    auth_required: bool = False
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    #: 1 to 9, the level nsqd compresses with.
    deflate_level: int = DEFAULT_DEFLATE_LEVEL
    max_deflate_level: int | None = None
    topology_region: str = ""
    topology_zone: str = ""
    #: Whether this nsqd counts RDY down (before 0.3, or a plain OK to IDENTIFY).
    counts_rdy_down: bool = False

    @classmethod
    def from_payload(cls, payload: bytes) -> Negotiated:
        """Parse the reply to IDENTIFY: a JSON object, or the plain OK of an nsqd without feature negotiation.

        :raises ProtocolError: if it is neither, or a field has the wrong type
        """
        if payload == frames.OK:
            return cls(counts_rdy_down=True)
        answer = _json_object(payload, "IDENTIFY")

        def number(key: str) -> int | None:
            value = answer.get(key)
            if value is None:
                return None
            # Bounded so that arithmetic with it stays finite; nsqd's own values are 32-bit or less.
            if type(value) is not int or not -1 <= value < 2**63:
                raise ProtocolError(f"the reply to IDENTIFY has {key}={value!r:.80}, not an integer in range")
            return value

        def seconds(key: str) -> float | None:
            value = number(key)
            return None if value is None else value / 1000

        def text(key: str) -> str:
            value = answer.get(key, "")
            if not isinstance(value, str):
                raise ProtocolError(f"the reply to IDENTIFY has {key}={value!r:.80}, not a string")
            return value

        version = text("version")
        max_rdy_count = number("max_rdy_count")
        return cls(
            version=version,
            max_rdy_count=DEFAULT_MAX_RDY_COUNT if max_rdy_count is None else max(0, max_rdy_count),
            msg_timeout=seconds("msg_timeout") or DEFAULT_MSG_TIMEOUT,
            max_msg_timeout=seconds("max_msg_timeout"),
            sample_rate=number("sample_rate") or 0,
            output_buffer_size=number("output_buffer_size"),
            output_buffer_timeout=seconds("output_buffer_timeout"),
            auth_required=answer.get("auth_required") is True,
            tls_v1=answer.get("tls_v1") is True,
            snappy=answer.get("snappy") is True,
            deflate=answer.get("deflate") is True,
            deflate_level=min(9, max(1, number("deflate_level") or DEFAULT_DEFLATE_LEVEL)),
            max_deflate_level=number("max_deflate_level"),
            topology_region=text("topology_region"),
            topology_zone=text("topology_zone"),
            counts_rdy_down=_version_tuple(version) < _RDY_IS_A_LEVEL_SINCE,
        )


def _version_tuple(version: str) -> tuple[int, ...]:
    """``"0.2.31-alpha"`` as (0, 2, 31); an unreadable version counts as new."""
    numbers = version.split("-")[0].split(".")
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        return _RDY_IS_A_LEVEL_SINCE
    return tuple(int(number) for number in numbers)


@dataclass(frozen=True, slots=True)
class Authorized:
    """nsqd's reply to a successful AUTH (docs/internals 1.4): which identity the secret belongs to."""

    identity: str = ""
    identity_url: str = ""
    #: Number of authorizations that the secret grants.
    permission_count: int = 0

    @classmethod
    def from_payload(cls, payload: bytes) -> Authorized:
        """Parse the reply to AUTH. Raises ProtocolError."""
        answer = _json_object(payload, "AUTH")
        kinds = {"identity": str, "identity_url": str, "permission_count": int}
        for key, kind in kinds.items():
            if type(answer.get(key, kind())) is not kind:
                raise ProtocolError(f"the reply to AUTH has {key}={answer[key]!r:.80}")
        return cls(**{key: answer[key] for key in kinds if key in answer})
