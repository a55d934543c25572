"""What all starts of a Reader share: its checked arguments, and the settings that may be changed while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gnsq_like.addresses import Address
from gnsq_like.errors import InvalidOption
from gnsq_like.options import ReaderOptions
from gnsq_like.reader.batch import Batch
from gnsq_like.reader.message import Message
from gnsq_like.runtime.dispatcher import HookRunner
from gnsq_like.runtime.user_code import check_callable
from gnsq_like.wire.names import encode_topic

#: Topics of a Reader that its log lines name.
_NAMED = 4

#: A Reader's handler; None if it is iterated over. Only False, for a failure, is looked at; the type of what it returns
#: lets checkers refuse an async handler.
Handler = Callable[[Message], "bool | None"] | Batch | None


def check_handler(handler: Handler) -> None:
    """Refuse a handler that could not handle a message. Raises InvalidOption."""
    if handler is not None and not isinstance(handler, Batch):  # which has checked its own
        check_callable("handler", handler, 1)


def require_handlers(handlers: Iterable[Handler]) -> None:
    """Refuse to run without one of these. Raises InvalidOption."""
    if any(handler is None for handler in handlers):
        raise InvalidOption("handler", None, "run() calls a handler; without one, iterate over the Reader")


class Topics:
    """The topics to consume.

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
        elif isinstance(given, str | bytes) or not isinstance(given, Iterable):
            encode_topic(given)
            self.names = (str(given),)
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
        """Their text, for labels."""
        return ",".join(self.names) if self.pattern is None else self.pattern.pattern

    @property
    def in_short(self) -> str:
        """Their text for the log: of many, the first ones."""
        left = len(self.names) - _NAMED
        return self.text if left <= 0 else f"{','.join(self.names[:_NAMED])} and {left} more"


@dataclass(slots=True)
class Setup:
    """A Reader's checked arguments. ``handler`` may be replaced between two starts."""

    topics: Topics
    channel: str
    options: ReaderOptions
    handler: Handler
    nsqds: tuple[Address, ...]
    lookupds: list[str]
    hooks: HookRunner
    on_giving_up: Callable[[Message], object] | None
    on_expired: Callable[[Message], object] | None
    #: These three may be changed while it runs; next: ``Running.steer``.
    max_in_flight: int = field(init=False)
    rate_limit: float | None = field(init=False)
    paused: bool = False

    def __post_init__(self) -> None:
        self.max_in_flight, self.rate_limit = self.options.max_in_flight, self.options.rate_limit

    @property
    def name(self) -> str:
        """The name of the Reader in the log."""
        return f"{self.topics.in_short}/{self.channel}"

    @property
    def concurrency(self) -> int:
        """How many handlers may run at once."""
        return self.options.concurrency or max(1, self.max_in_flight)
