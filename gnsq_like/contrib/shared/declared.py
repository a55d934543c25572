"""The declaration that ``@reader`` makes, in Flask and in Django, and the Reader made from it.

A declaration creates nothing and does not load gevent, because applications declare while they are imported, which
may be before they patch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_like import Reader
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.contrib.shared.settings import Settings

#: As a Reader takes them: a name, several, or a pattern.
Topic = str | Iterable[str] | re.Pattern[str]

#: Options of a Reader that are called with a message instead of the handler.
_HOOKS = ("on_giving_up", "on_expired")


@dataclass(frozen=True)
class Declared:
    """One ``@reader``."""

    name: str
    topic: Topic
    channel: str
    #: The decorated function: called with a Message, or with a list of them.
    function: Callable[[Any], object]
    #: Arguments of a Batch, for a handler that takes lists; else None.
    batch: Mapping[str, Any] | None
    #: Keyword arguments of the Reader.
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if isinstance(self.topic, Iterable) and not isinstance(self.topic, str):
            object.__setattr__(self, "topic", tuple(self.topic))  # may be read once only

    @property
    def topic_text(self) -> str:
        """For people: several names are joined by commas."""
        if isinstance(self.topic, re.Pattern):
            return self.topic.pattern
        return self.topic if isinstance(self.topic, str) else ",".join(self.topic)

    def reads(self, topic: str) -> bool:
        """Whether this is one of its topics."""
        if isinstance(self.topic, re.Pattern):
            return self.topic.search(topic) is not None
        return topic == self.topic if isinstance(self.topic, str) else topic in self.topic

    @property
    def hooks(self) -> dict[str, Callable[[Any], object]]:
        """Those functions that a Reader calls instead of the handler and that are given, by option."""
        return {name: hook for name in _HOOKS if (hook := self.options.get(name)) is not None}

    def make_reader(
        self,
        settings: Settings,
        handler: Callable[[Any], object],
        hooks: Mapping[str, Callable[[Any], object]],
        metrics: Metrics | None,
    ) -> Reader:
        """The Reader, not started; watched by ``metrics``.

        :param handler: the function, wrapped by the framework
        :param hooks: :attr:`hooks`, likewise wrapped
        :raises UsageError: for wrong settings or arguments
        """
        called: Any = handler if metrics is None else metrics.timed(handler)
        if self.batch is not None:
            from gnsq_like import Batch

            called = Batch(called, **self.batch)
        reader = settings.make_reader(self.topic, self.channel, called, {**self.options, **hooks})
        if metrics is not None:
            metrics.watch_reader(reader)
        return reader
