"""Values as text: how flags, files, the environment, a framework's configuration and a query's options all read them.

Durations are as Go, and so NSQ, writes them: "250ms", "60s", "1h30m"; more is read. The owners of the options check
names, bounds and combinations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import NoneType
from typing import TypeVar, cast

from gnsq_like.errors import UsageError

_T = TypeVar("_T")

_TRUE = frozenset({"true", "t", "yes", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "off", "0"})
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

#: Seconds per unit. Go, and so NSQ, has neither "min" nor "d"; it has both code points of "µs".
_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_PART = re.compile(rf"\s*({_NUMBER})\s*({'|'.join(sorted(_UNITS, key=len, reverse=True))})\s*")
_WHOLE = re.compile(f"(?:{_PART.pattern})+")


def read_text(text: str, kinds: tuple[type[_T], ...], read_float: Callable[[str], float] = float) -> _T:
    """The text as the first of these types that it fits, in the order None, bool, int, float, str.

    :param kinds: with NoneType, nothing and "none" are None
    :param read_float: reads a float, such as a duration
    :raises UsageError: it fits none of them
    """
    return cast(_T, _read(text, kinds, read_float))


def _read(text: str, kinds: tuple[type, ...], read_float: Callable[[str], float]) -> object:
    word = text.strip().lower()
    if NoneType in kinds and word in ("", "none"):
        return None
    if bool in kinds and word in _TRUE | _FALSE:
        return word in _TRUE
    fault = f"it must be {' or '.join(_WORDS[kind] for kind in kinds if kind in _WORDS)}"
    for kind, read in ((int, int), (float, read_float)):
        if kind in kinds:
            try:
                return read(word)
            except UsageError as exc:
                fault = str(exc)
            except ValueError:
                pass
    if str in kinds:
        return text
    raise UsageError(fault)


def read_size(text: str) -> int:
    """Bytes from "500000", "300M" or "1.5GB"; K, M, G and T are powers of 1024.

    :raises UsageError: it is malformed, or less than a byte
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (size := int(float(found[1]) * _BYTES[found[2].lower()])):
        raise UsageError("it must be a size such as 300M or 1.5G")
    return size


def parse_duration(text: str, *, default_unit: str = "") -> float:
    """Parse a duration, in upper or lower case, with or without blanks.

    :param default_unit: the unit of a bare number; without it, the only accepted bare number is 0, as in Go
    :return: seconds
    :raises UsageError: if it is malformed
    """
    lowered = text.strip().lower()
    if re.fullmatch(_NUMBER, lowered) and (default_unit or lowered == "0"):
        lowered += default_unit or "s"
    if not _WHOLE.fullmatch(lowered):
        raise UsageError('it must be a duration such as "250ms", "30s" or "1h30m"')
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(lowered))
