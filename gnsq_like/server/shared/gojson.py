"""JSON objects, read as NSQ's Go programs read them into a struct (docs/internals 1.3).

Names are matched without regard to case, unknown names are ignored, and null is the default; types are strict: 2000.0
is not an integer. What Go would reject raises ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class GoObject:
    """The fields of one JSON object.

    :raises ValueError: if the document is not an object
    """

    def __init__(self, document: Any) -> None:
        if not isinstance(document, dict | None):
            raise ValueError("not a JSON object")
        self._values = {name.lower(): value for name, value in (document or {}).items() if value is not None}

    def text(self, name: str) -> str:
        """A string; empty by default."""
        return _whole(self._typed(name, "", lambda value: isinstance(value, str)))

    def flag(self, name: str) -> bool:
        """A boolean; False by default."""
        return bool(self._typed(name, False, lambda value: isinstance(value, bool)))

    def number(self, name: str, most: int = INT64_MAX) -> int:
        """An integer from -``most`` - 1 to ``most``; 0 by default."""
        return int(self._typed(name, 0, lambda value: type(value) is int and -most - 1 <= value <= most))

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise ValueError("not a list of strings")
        return [_whole(value) for value in values]

    def objects(self, name: str) -> list[GoObject]:
        """A list of objects."""
        return [GoObject(value) for value in self._list(name)]

    def _list(self, name: str) -> list[Any]:
        return list(self._typed(name, [], lambda value: type(value) is list))

    def _typed(self, name: str, default: Any, is_right: Callable[[Any], bool]) -> Any:
        value = self._values.get(name, default)
        if not is_right(value):
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
