"""Functions that are named as "module:name", so that their module is imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def named(place: Any, default: str) -> Any:
    """The object at a place; anything but a string is that object itself.

    :param default: the name, if only a module is given
    """
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name or default)
