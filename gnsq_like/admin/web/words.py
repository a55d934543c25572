"""Figures as people read them: the filters of the templates."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from markupsafe import Markup, escape

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_MISSING = "–"
#: Characters of a text on a page.
_MOST_TEXT = 500
#: Characters of a message's body, and bytes of a binary one.
_MOST_BODY = 20_000


def number(value: float | None) -> str:
    """A count with its thousands separated; a small fraction with two digits that count."""
    if value is None or value != value:
        return _MISSING
    if math.isinf(value):
        return "∞"
    if isinstance(value, int) or value == int(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def compact(value: float | None) -> str:
    """A count in few characters: 950, 1.2k, 34k, 5.6M."""
    if value is None or value != value:
        return _MISSING
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            part = value / size
            return f"{part:.1f}".removesuffix(".0") + unit if part < 100 else f"{part:.0f}{unit}"
    return number(value)


def rate(value: float | None) -> str:
    """Messages a second."""
    return _MISSING if value is None or value != value else f"{compact(value)}/s"


def span(seconds: float | None) -> str:
    """A duration in its two largest units: 2h 5m."""
    if seconds is None or seconds != seconds:
        return _MISSING
    if math.isinf(seconds):
        return "never"
    if seconds < 1:
        return "0s" if seconds <= 0 else "< 1s"
    left, parts = int(min(seconds, 1e10)), []
    for size, unit in _UNITS:
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])


def drain(seconds: float) -> str:
    """A time to drain, or why there is none."""
    if seconds != seconds:
        return "not known yet"
    if seconds == 0:
        return "empty"
    return "not falling" if math.isinf(seconds) else span(seconds)


def latency(nanoseconds: float) -> str:
    """A latency; nsqd reports 0 where it has measured none."""
    if not nanoseconds > 0:
        return _MISSING
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.1f} {unit}"
    return f"{nanoseconds:.0f} ns"


def seconds(value: float | None) -> str:
    """A latency in seconds: 12 ms, 3.4 s, 2m 5s."""
    if value is None or value != value:
        return _MISSING
    return span(value) if value >= 60 else latency(value * 1e9) if value > 0 else "0 s"


def share(value: float | None) -> str:
    """A part of a whole, in percent."""
    if value is None or value != value:
        return _MISSING
    return f"{value:.0%}" if value == 0 or value >= 0.1 else f"{max(value, 0.0001):.2%}"


def clock(at: float) -> str:
    """A time of day."""
    return moment(at, "%H:%M:%S")


def moment(at: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Date and time."""
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return _MISSING


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return _MISSING
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:.0f} B"


def whole(text: str) -> Markup:
    """A text that is shown in full; others are cut by :func:`cut`."""
    return escape(text)


def cut(value: object) -> Any:
    """A value as a template shows it, shortened: text from elsewhere may have any length."""
    return f"{value[:_MOST_TEXT]}…" if type(value) is str and len(value) > _MOST_TEXT else value


def body(data: bytes) -> str:
    """A message's body as text: JSON is indented, and bytes that are not UTF-8 are replaced."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"{data[:_MOST_BODY]!r}" if b"\0" in data else data[:_MOST_BODY].decode("utf-8", "replace")
    if text[:1] in "{[" and len(text) <= _MOST_BODY:
        try:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)[: 2 * _MOST_BODY]
        except (ValueError, RecursionError):
            pass
    return text[:_MOST_BODY] + (" …" if len(text) > _MOST_BODY else "")
