"""Where a tool's messages come from: nsqds or nsqlookupds, and the options of its Readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_like import Batch, LookupdClient, Message, Reader
from gnsq_like.errors import HTTPError, NSQError


@dataclass(frozen=True)
class Source:
    """The nsqds that a tool reads from, fixed or found through nsqlookupds, and how."""

    nsqd_tcp_addresses: tuple[str, ...] = ()
    lookupd_http_addresses: tuple[str, ...] = ()
    #: Keyword arguments of each Reader; see :class:`gnsq_like.options.ReaderOptions`.
    options: Mapping[str, Any] = field(default_factory=dict)

    def reader(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Message], object] | Batch | None = None,
        **arguments: Any,
    ) -> Reader:
        """A Reader of this source; ``arguments`` override its options. Next: ``start``."""
        return Reader(
            topic,
            channel,
            handler,
            nsqd_tcp_addresses=self.nsqd_tcp_addresses,
            lookupd_http_addresses=self.lookupd_http_addresses,
            **{**self.options, **arguments},
        )

    def lookupds(self, timeout: float, connect_timeout: float = 2.0) -> list[LookupdClient]:
        """Clients of its nsqlookupds, with the options for TLS and authorization. Opens no connection."""
        options = self.options
        return [
            LookupdClient(
                address,
                timeout=timeout,
                connect_timeout=connect_timeout,
                authorization=options.get("lookupd_authorization"),
                verify=options.get("lookupd_verify", True),
                cert=options.get("lookupd_cert"),
            )
            for address in self.lookupd_http_addresses
        ]


class Unreachable(NSQError):
    """None of the given daemons could be reached when the tool started.

    :ivar errors: the error of each address
    """

    def __init__(self, errors: Mapping[str, NSQError]) -> None:
        super().__init__(errors)
        self.errors = dict(errors)

    def __str__(self) -> str:
        return "; ".join(str(error) for error in self.errors.values())


def topics_of(lookupds: list[LookupdClient]) -> set[str]:
    """All topics that the nsqlookupds know; one that does not answer is skipped. May switch.

    :raises Unreachable: if none of them answers
    """
    found: set[str] = set()
    errors: dict[str, NSQError] = {}
    for client in lookupds:
        try:
            found |= set(client.topics())
        except HTTPError as exc:
            errors[client.url] = exc
    if errors and len(errors) == len(lookupds):
        raise Unreachable(errors)
    return found
