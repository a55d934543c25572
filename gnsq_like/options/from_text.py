"""Values as text: how flags, files, the environment, a framework's configuration and a query's options all read them.

The owners of the options check names, bounds and combinations.
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
