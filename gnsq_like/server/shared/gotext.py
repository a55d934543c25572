"""Text and JSON as NSQ's Go programs write and read them, as far as clients see it.

JSON objects are read as into a struct (docs/internals 1.3): names are matched without regard to case, unknown names are
ignored, and null is the default; types are strict: 2000.0 is not an integer. Documents that Go would reject raise
ValueError.
"""

from __future__ import annotations

import json
import re
from typing import TypeVar

_T = TypeVar("_T")

_DIGITS = frozenset(b"0123456789")
_UINT64 = 1 << 64
_INT64 = 1 << 63
INT32_MAX = (1 << 31) - 1
INT64_MAX = _INT64 - 1
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: bytes) -> str:
    """A client's input for the log and for errors: unchanged if it is ASCII, else with escapes."""
    return text.decode("latin-1").encode("unicode_escape").decode()


def to_json(value: object) -> bytes:
    """Compact JSON, as Go writes it but for the escapes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def parse_uint64(text: bytes) -> int | None:
    """nsqd's numbers: only ASCII digits, none for 0, wrapping silently (docs/internals 0); None for others."""
    if not _DIGITS.issuperset(text):
        return None
    return int(text or b"0") % _UINT64


def as_int64(number: int) -> int:
    """An unsigned 64-bit number read as a signed one."""
    return number - _UINT64 if number >= _INT64 else number


def seconds_from_ms(milliseconds: int) -> float:
    """Unsigned milliseconds as Go's time.Duration, which counts ns in 64 bits and wraps silently."""
    return as_int64(milliseconds * 1_000_000 % _UINT64) / 1e9


def nanoseconds(value: float) -> str:
    """NSQ's text for a latency: 100.6ms, 3.0us."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value > size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}ns"


def format_duration(seconds: float) -> str:
    """Format a duration as Go does, to the nanosecond: "1h2m3.5s", "191.384574ms", "0s"."""
    nanoseconds = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 and nanoseconds else ""
    if 0 < nanoseconds < 1_000_000_000:
        unit, size = next(each for each in (("ms", 1_000_000), ("µs", 1000), ("ns", 1)) if nanoseconds >= each[1])
        return f"{sign}{_divided(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{_divided(rest, 1_000_000_000)}s"
    if hours:
        text = f"{hours}h{minutes}m{text}"
    elif minutes:
        text = f"{minutes}m{text}"
    return sign + text


def _divided(number: int, size: int) -> str:
    """``number / size`` in decimal, exactly, without trailing zeros; ``size`` is a power of ten."""
    whole, fraction = divmod(number, size)
    digits = str(size + fraction)[1:].rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


class GoObject:
    """The fields of one JSON object.

    :raises ValueError: if the document is not an object
    """

    def __init__(self, document: object) -> None:
        if not isinstance(document, dict | None):
            raise ValueError("not a JSON object")
        self._values = {name.lower(): value for name, value in (document or {}).items() if value is not None}

    def text(self, name: str) -> str:
        """A string; empty by default."""
        return _whole(self._typed(name, str, ""))

    def flag(self, name: str) -> bool:
        """A boolean; False by default."""
        return self._typed(name, bool, False)

    def number(self, name: str, most: int = INT64_MAX) -> int:
        """An integer from -``most`` - 1 to ``most``; 0 by default."""
        value = self._typed(name, int, 0)
        if not -most - 1 <= value <= most:
            raise ValueError(f"{name} is of the wrong type")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        values = self._list(name)
        texts = [_whole(value) for value in values if isinstance(value, str)]
        if len(texts) < len(values):
            raise ValueError("not a list of strings")
        return texts

    def objects(self, name: str) -> list[GoObject]:
        """A list of objects."""
        return [GoObject(value) for value in self._list(name)]

    def _list(self, name: str) -> list[object]:
        return list(self._typed(name, list, []))

    def _typed(self, name: str, kind: type[_T], default: _T) -> _T:
        value = self._values.get(name, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{name} is of the wrong type")
        return value


def _whole(text: str) -> str:
    """A half of a surrogate pair, which JSON can express, is replaced."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def read_object(body: bytes) -> GoObject:
    """Parse a JSON object; bytes that are not UTF-8 are replaced.

    :raises ValueError: if ``body`` is not a JSON object
    """
    try:
        return GoObject(json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
