"""The source of a tool's messages: nsqds or nsqlookupds, and the options of its Readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_like import Batch, Message, Reader
from gnsq_like.cluster.daemons import Daemons


@dataclass(frozen=True)
class Source:
    """The nsqds that a tool reads from, fixed or found through nsqlookupds."""

    nsqd_tcp_addresses: tuple[str, ...] = ()
    lookupd_http_addresses: tuple[str, ...] = ()
    #: Keyword arguments of each Reader; see :class:`gnsq_like.options.ReaderOptions`.
    options: Mapping[str, Any] = field(default_factory=dict)

    def reader(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Message], bool | None] | Batch | None = None,
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

    def daemons(self, timeout: float, connect_timeout: float = 2.0) -> Daemons:
        """HTTP clients of its nsqlookupds and nsqds, with the options for TLS and authorization. Next: a ``with``
        block."""
        options = self.options
        return Daemons(
            (),
            self.lookupd_http_addresses,
            {"timeout": timeout, "connect_timeout": connect_timeout},
            {
                "authorization": options.get("lookupd_authorization"),
                "verify": options.get("lookupd_verify", True),
                "cert": options.get("lookupd_cert"),
            },
        )
