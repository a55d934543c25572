"""Message bodies: a number that no other publish has, and padding of any length."""

from __future__ import annotations


def make_body(number: int, padding: int = 0) -> bytes:
    return b"%d %s" % (number, b"." * padding)


def number_of(body: bytes) -> int:
    """The number of a body of ``make_body``."""
    return int(body.partition(b" ")[0])
