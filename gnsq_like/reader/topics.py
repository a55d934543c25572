"""The argument ``topic`` of a Reader: a name, several, or a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gnsq_like.errors import InvalidOption
from gnsq_like.wire.names import encode_topic


class Topics:
    """What to consume.

    :raises InvalidName, InvalidOption: if it is invalid
    """

    def __init__(self, given: str | Iterable[str] | re.Pattern[str]) -> None:
        #: Of the topics; None if they are given by name.
        self.pattern: re.Pattern[str] | None = None
        self.names: tuple[str, ...] = ()
        if isinstance(given, re.Pattern):
            if not isinstance(given.pattern, str):
                raise InvalidOption("topic", given, "a pattern must be compiled from str")
            self.pattern = given
        elif isinstance(given, str) or not isinstance(given, Iterable):
            encode_topic(given)
            self.names = (given,)
        else:
            self.names = tuple(dict.fromkeys(given))
            for name in self.names:
                encode_topic(name)
            if not self.names:
                raise InvalidOption("topic", given, "it must be a name, several names, or a compiled pattern")

    @property
    def are_several(self) -> bool:
        """Whether there may be more than one."""
        return self.pattern is not None or len(self.names) > 1

    @property
    def text(self) -> str:
        """For people, and for labels."""
        return ",".join(self.names) if self.pattern is None else self.pattern.pattern
