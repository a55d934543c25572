"""JSON objects, read as NSQ's Go programs read them into a struct (docs/internals 1.3).

Names are matched without regard to case, unknown names are ignored, and null leaves the default; types are
strict: 2000.0 is not an integer. What Go would reject raises ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


class GoObject:
    """The fields of one JSON object.

    :raises ValueError: if the document is not an object
    """

    def __init__(self, document: Any) -> None:
        if document is None:
            document = {}
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        self._values = {key.lower(): value for key, value in document.items() if value is not None}

    def text(self, name: str) -> str:
        """A string; empty by default."""
        return str(self._typed(name, "", lambda value: isinstance(value, str)))

    def flag(self, name: str) -> bool:
        """A boolean; False by default."""
        return bool(self._typed(name, False, lambda value: isinstance(value, bool)))

    def number(self, name: str, most: int = INT64_MAX) -> int:
        """An integer from -``most`` - 1 to ``most``; 0 by default."""
        return int(self._typed(name, 0, lambda value: type(value) is int and -most - 1 <= value <= most))

    def texts(self, name: str) -> list[str]:
        """A list of strings, in which null is an empty string."""
        return [_text(value) for value in self._list(name)]

    def objects(self, name: str) -> list[GoObject]:
        """A list of objects."""
        return [GoObject(value) for value in self._list(name)]

    def _list(self, name: str) -> list[Any]:
        return list(self._typed(name, [], lambda value: isinstance(value, list)))

    def _typed(self, name: str, default: Any, is_right: Callable[[Any], bool]) -> Any:
        value = self._values.get(name, default)
        if not is_right(value):
            raise ValueError(f"{name} is of the wrong type")
        return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("not a list of strings")
    return value


def read_object(body: bytes) -> GoObject:
    """Parse a JSON object; bytes that are not UTF-8 are replaced.

    :raises ValueError: if ``body`` is not a JSON object
    """
    try:
        document = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return GoObject(document)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
