"""Text as NSQ's Go programs write and read it, where clients can see the difference."""

from __future__ import annotations

import json

_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}
_DIGITS = frozenset(b"0123456789")
#: What Go's JSON encoder escapes in addition, for HTML and JavaScript, and how it writes bytes that are not UTF-8.
_JSON_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_JSON_ESCAPES |= dict.fromkeys(range(0xD800, 0xE000), "\\ufffd")
_UINT64 = 1 << 64
_INT64 = 1 << 63


def printable(text: bytes) -> str:
    """For the log: as it is, with everything that is not printable escaped."""
    return quote(text)[1:-1].replace(b'\\"', b'"').decode()


def quote(text: bytes) -> bytes:
    """Go's %q: in double quotes, with everything that is not printable escaped."""
    quoted = []
    for char in text.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if char in _ESCAPES:
            quoted.append(_ESCAPES[char])
        elif 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
            quoted.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable():
            quoted.append(char)
        elif code < 0x80:
            quoted.append(f"\\x{code:02x}")
        elif code < 0x10000:
            quoted.append(f"\\u{code:04x}")
        else:
            quoted.append(f"\\U{code:08x}")
    return b'"%b"' % "".join(quoted).encode()


def to_json(value: object) -> bytes:
    """Compact JSON with Go's escapes; bytes that are not UTF-8 are replaced."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_JSON_ESCAPES).encode()


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
