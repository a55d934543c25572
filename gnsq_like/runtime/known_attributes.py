"""Refuses misspelt attributes, which Python would create: ``reader.max_inflight = 5`` would change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gnsq_like.errors import did_you_mean


class KnownAttributes:
    """A base class whose objects get no new attributes after ``_seal``, which their ``__init__`` calls at its end."""

    _is_sealed = False
    #: Names that are arguments of the constructor and not attributes.
    _only_given: frozenset[str] = frozenset()

    def _seal(self, cls: type, only_given: Iterable[str] = ()) -> None:
        """Accept no further attributes, unless this is an object of a subclass of ``cls``, which may have its own."""
        self._only_given = frozenset(only_given)
        self._is_sealed = type(self) is cls

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __setattr__(self, name: str, value: object) -> None:
            if self._is_sealed and name not in self.__dict__ and not hasattr(type(self), name):
                raise AttributeError(self._unknown(name), name=name, obj=self)
            super().__setattr__(name, value)

    def _unknown(self, name: str) -> str:
        text = f"a {type(self).__name__} has no attribute {name!r}"
        if name in self._only_given:
            return f"{text}; it is an option, and given to the constructor"
        public = [each for each in {*dir(type(self)), *self.__dict__} if not each.startswith("_")]
        return text + did_you_mean(name, sorted(public))
