"""The declaration that ``@reader`` makes, in Flask and in Django, and the Reader made from it.

A declaration creates nothing and does not load gevent, because applications declare while they are imported, which
may be before they patch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_like import Reader
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.contrib.shared.settings import Settings


@dataclass(frozen=True)
class Declared:
    """One ``@reader``."""

    name: str
    topic: str
    channel: str
    #: The decorated function: called with a Message, or with a list of them.
    function: Callable[[Any], object]
    #: Arguments of a Batch, for a handler that takes lists; else None.
    batch: Mapping[str, Any] | None
    #: Keyword arguments of the Reader.
    options: Mapping[str, Any]

    def make_reader(
        self,
        settings: Settings,
        handler: Callable[[Any], object],
        on_giving_up: Callable[[Any], object] | None,
        metrics: Metrics | None,
    ) -> Reader:
        """The Reader, not started; watched by ``metrics``.

        :param handler: the function, wrapped by the framework
        :param on_giving_up: the option of this name, likewise wrapped
        :raises UsageError: for wrong settings or arguments
        """
        called: Any = handler if metrics is None else metrics.timed(handler)
        if self.batch is not None:
            from gnsq_like import Batch

            called = Batch(called, **self.batch)
        options = {**self.options, "on_giving_up": on_giving_up}
        reader = settings.make_reader(self.topic, self.channel, called, options)
        if metrics is not None:
            metrics.watch_reader(reader)
        return reader
