"""The argument ``topic`` of a Reader: a name, several, or a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gnsq_like.addresses import Address
from gnsq_like.discovery.redial import Target
from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.options import DiscoveryOptions
from gnsq_like.wire.names import encode_topic

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller


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

    def make_poller(
        self,
        lookupds: Iterable[str],
        options: DiscoveryOptions,
        on_found: Callable[[list[Target], bool], float | None],
        on_error: Callable[[str, NSQError], object],
        *,
        on_gone: Callable[[list[Target]], object],
        connected: Callable[[], Iterable[Target]],
    ) -> LookupdPoller:
        """What finds the nsqds; for the parameters see ``TopicsPoller``. Opens no connection."""
        # Imported at first use: an application may have to patch before the HTTP client is loaded.
        if self.are_several:
            from gnsq_like.discovery.topics import make_topics_poller

            topics = self.pattern or self.names
            return make_topics_poller(
                lookupds, topics, options, on_found, on_error, on_gone=on_gone, connected=connected
            )
        from gnsq_like.discovery.lookupd_poller import make_poller

        (topic,) = self.names

        def found(addresses: list[Address], complete: bool) -> float | None:
            return on_found([Target(address, topic) for address in addresses], complete)

        return make_poller(lookupds, topic, options, found, on_error)

    @property
    def are_several(self) -> bool:
        """Whether there may be more than one."""
        return self.pattern is not None or len(self.names) > 1

    @property
    def text(self) -> str:
        """For people, and for labels."""
        return ",".join(self.names) if self.pattern is None else self.pattern.pattern
