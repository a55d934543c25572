"""The declaration that ``@reader`` makes, in Flask and in Django, and the Reader made from it.

A declaration creates nothing and does not load gevent, because applications declare while they are imported, which
may be before they patch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_like import Reader
    from gnsq_like.contrib.opentelemetry import Tracing
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.contrib.shared.settings import Settings

#: As a Reader takes them: a name, several, or a pattern.
Topic = str | Iterable[str] | re.Pattern[str]

#: Options of a Reader that are functions of the application, and run in its context as the handler does.
_HOOKS = (
    *("on_giving_up", "on_expired", "on_finish", "on_requeue", "on_failure", "on_timeout"),
    *("on_connect", "on_disconnect", "on_error", "on_auth", "on_backoff"),
)
#: The arguments of a Batch beside the handler.
_BATCH = ("size", "interval")


@dataclass(frozen=True)
class Declared:
    """One ``@reader``."""

    name: str
    topic: Topic
    channel: str
    #: The decorated function: called with a Message, or with a list of them.
    function: Callable[[Any], Any]
    #: Arguments of a Batch, for a handler that takes lists; else None.
    batch: Mapping[str, Any] | None
    #: Keyword arguments of the Reader.
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if isinstance(self.topic, Iterable) and not isinstance(self.topic, str):
            object.__setattr__(self, "topic", tuple(self.topic))  # may be read once only

    @property
    def topic_text(self) -> str:
        """The topics as text, joined by commas."""
        if isinstance(self.topic, re.Pattern):
            return self.topic.pattern
        return self.topic if isinstance(self.topic, str) else ",".join(self.topic)

    def reads(self, topic: str) -> bool:
        """Whether this is one of its topics."""
        if isinstance(self.topic, re.Pattern):
            return self.topic.search(topic) is not None
        return topic == self.topic if isinstance(self.topic, str) else topic in self.topic

    @property
    def hooks(self) -> dict[str, Callable[..., object]]:
        """The given functions that a Reader calls in addition to the handler or instead of it, by option."""
        return {name: hook for name in _HOOKS if (hook := self.options.get(name)) is not None}

    def check(self) -> None:
        """Raise now the errors that the Reader would raise later; a constructor does nothing else."""
        from gnsq_like import Reader

        addresses = {"lookupd_http_addresses": "127.0.0.1:4161"}
        Reader(self.topic, self.channel, self._batched(self.function), **(addresses | dict(self.options)))

    def make_reader(
        self,
        settings: Settings,
        handler: Callable[[Any], object],
        hooks: Mapping[str, Callable[..., object]],
        metrics: Metrics | None,
        tracing: Tracing | None,
    ) -> Reader:
        """The Reader, not started; watched by ``metrics``, and traced.

        :param handler: the function, wrapped by the framework
        :param hooks: :attr:`hooks`, likewise wrapped
        :raises UsageError: for wrong settings or arguments
        """
        # The wrappers take any arguments; the functions themselves may not.
        settings.make_reader(self.topic, self.channel, self._batched(self.function), self.options)
        called = handler if metrics is None else metrics.timed(handler)
        options = {**self.options, **hooks}
        if tracing is not None:
            called = tracing.traced(called)
            options = tracing.reader_arguments({"decoder": settings.reader.get("decoder"), **options})
        reader = settings.make_reader(self.topic, self.channel, self._batched(called), options)
        if metrics is not None:
            metrics.watch_reader(reader)
        return reader

    def _batched(self, handler: Callable[[Any], Any]) -> Any:
        """A Reader's handler."""
        if self.batch is None:
            return handler
        from gnsq_like import Batch
        from gnsq_like.errors import InvalidOption, did_you_mean

        if not isinstance(self.batch, Mapping):
            raise InvalidOption("batch", self.batch, 'it must be the arguments of a Batch, such as {"size": 100}')
        for name in self.batch:
            if name not in _BATCH:
                near = did_you_mean(name, _BATCH)
                raise InvalidOption("batch", self.batch, f"a Batch has no argument {name!r}{near}")
        return Batch(handler, **self.batch)


def readers_of(source: Callable[[], Iterable[Reader]] | str) -> list[Reader]:
    """The Readers that a function, or an object's ``make_readers``, returns; the source may also be a name,
    "module:name"."""
    found = resolve_name(source) if isinstance(source, str) else source
    return list(getattr(found, "make_readers", found)())
