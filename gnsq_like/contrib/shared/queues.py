"""The messages of a topic with one channel, over all nsqds: counted and dropped by their HTTP APIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption

if TYPE_CHECKING:
    from gnsq_like.cluster.daemons import Daemons


class Queues:
    """The daemons that have the queues.

    :param channel: the channel of each topic
    :param nsqds: HTTP addresses of the nsqds; not needed if there are nsqlookupds
    :param lookupds: HTTP addresses of nsqlookupds, which know the nsqds
    """

    def __init__(self, channel: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...]) -> None:
        self._channel = channel
        self._nsqds = nsqds
        self._lookupds = lookupds

    @property
    def is_known(self) -> bool:
        """Whether any HTTP address is known."""
        return bool(self._nsqds or self._lookupds)

    def count(self, topic: str, within: float | None = None) -> int:
        """The messages that are not finished, those in flight and deferred included. May switch, or block.

        :param within: seconds; daemons that have not answered by then are left out. Without it, every nsqd must answer
        :raises NSQError: if no HTTP address is known; without ``within``, if a daemon does not answer
        """
        from gnsq_like.cluster.counting import count_topic
        from gnsq_like.cluster.rounds import NotFound, Unreachable

        try:
            # Two rounds, so that a silent nsqlookupd leaves time for the nsqds.
            with self._daemons({} if within is None else {"timeout": within / 2}) as daemons:
                found = count_topic(daemons, topic)
            failures = found.failures
        except NotFound as exc:  # by those that answered
            found, failures = None, exc.failures
        except Unreachable as exc:
            found, failures = None, [*exc.errors.values()]
        if failures and within is None:
            raise failures[0]
        if found is None:
            return 0
        channel = found.channel(self._channel)
        return found.total.depth + (0 if channel is None else channel.left)

    def empty(self, topic: str) -> None:
        """Drop all messages, those in flight and deferred included. May switch, or block.

        :raises NSQError: if no HTTP address is known, or an nsqd does not answer
        """
        from gnsq_like.cluster.operations import operate
        from gnsq_like.cluster.rounds import NotFound

        with self._daemons() as daemons:
            for channel in (None, self._channel):  # the topic first: what it has would pass on to the channel
                try:
                    failures = operate(daemons, "empty", topic, channel).failures
                except NotFound as exc:  # by those that answered
                    failures = exc.failures
                for failure in failures:
                    if not isinstance(failure, NotFound):
                        raise failure

    def _daemons(self, options: Mapping[str, Any] = MappingProxyType({})) -> Daemons:
        from gnsq_like.cluster.daemons import Daemons

        if not self.is_known:
            text = "messages are counted and dropped over nsqd's HTTP API: name that, or nsqlookupds"
            raise InvalidOption("nsqd_http_addresses", (), text)
        return Daemons(() if self._lookupds else self._nsqds, self._lookupds, options)


def several(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """One address, or several."""
    return (addresses,) if isinstance(addresses, str) else tuple(addresses)
