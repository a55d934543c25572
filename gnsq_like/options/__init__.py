"""The options of a connection, a Reader and a Producer: the checked objects, and the same as typed keywords."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.options.keywords import (
        ConnectionOptionsDict,
        DiscoveryOptionsDict,
        ProducerOptionsDict,
        ReaderOptionsDict,
    )
    from gnsq_like.options.options import (
        DEFAULT_HEARTBEAT_INTERVAL,
        DEFAULT_OUTPUT_BUFFER_SIZE,
        DEFAULT_OUTPUT_BUFFER_TIMEOUT,
        ConnectionOptions,
        DiscoveryOptions,
        ProducerOptions,
        ReaderOptions,
        check_option,
        make_options,
        option_names,
        secret_fault,
    )

__all__ = [
    "DEFAULT_HEARTBEAT_INTERVAL",
    "DEFAULT_OUTPUT_BUFFER_SIZE",
    "DEFAULT_OUTPUT_BUFFER_TIMEOUT",
    "ConnectionOptions",
    "ConnectionOptionsDict",
    "DiscoveryOptions",
    "DiscoveryOptionsDict",
    "ProducerOptions",
    "ProducerOptionsDict",
    "ReaderOptions",
    "ReaderOptionsDict",
    "check_option",
    "make_options",
    "option_names",
    "secret_fault",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {name: f"gnsq_like.options.{'keywords' if name.endswith('Dict') else 'options'}" for name in __all__},
    )
