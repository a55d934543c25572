"""Durations as text: "250ms", "60s", "1h30m". The parser accepts Go's format and more; the printer writes Go's."""

from __future__ import annotations

import re

from gnsq_like.errors import UsageError

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
