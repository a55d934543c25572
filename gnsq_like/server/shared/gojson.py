"""JSON objects, read as NSQ's Go programs read them into a struct (docs/internals 1.3).

Names are matched without regard to case, unknown names are ignored, and null changes nothing; types are strict:
2000.0 is not an integer. Of a name that is given several times, in whatever case, the last value counts, and all must
be of the right type. What Go would reject raises ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


#: What Go takes for an ASCII letter besides its two cases: the long s and the sign for Kelvin.
_FOLDED = str.maketrans({"\u017f": "s", "\u212a": "k"})
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written: names may come several times."""


class GoObject:
    """The fields of one JSON object.

    :raises ValueError: if the document is not an object
    """

    def __init__(self, document: Any) -> None:
        if document is None:
            document = _Pairs()
        if not isinstance(document, _Pairs):
            raise ValueError("not a JSON object")
        #: All values of a name, without null.
        self._values: dict[str, list[Any]] = {}
        for key, value in document:
            if value is not None:
                self._values.setdefault(key.translate(_FOLDED).lower(), []).append(value)

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
        """A list of strings, in which null is an empty string."""
        return [_text(value) for value in self._list(name)]

    def objects(self, name: str) -> list[GoObject]:
        """A list of objects."""
        return [GoObject(value) for value in self._list(name)]

    def _list(self, name: str) -> list[Any]:
        return list(self._typed(name, [], lambda value: type(value) is list))

    def _typed(self, name: str, default: Any, is_right: Callable[[Any], bool]) -> Any:
        values = self._values.get(name)
        if values is None:
            return default
        if not all(map(is_right, values)):
            raise ValueError(f"{name} is of the wrong type")
        return values[-1]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("not a list of strings")
    return _whole(value)


def _whole(text: str) -> str:
    """A half of a surrogate pair, which JSON can express, is replaced."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def read_object(body: bytes) -> GoObject:
    """Parse a JSON object; bytes that are not UTF-8 are replaced.

    :raises ValueError: if ``body`` is not a JSON object
    """
    try:
        document = json.loads(
            body.decode("utf-8", "replace"), parse_constant=_refuse_constant, object_pairs_hook=_Pairs
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return GoObject(document)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
