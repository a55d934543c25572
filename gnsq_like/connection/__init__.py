"""One connection to one nsqd: ``handshake`` opens it, ``write_buffer`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.connection.connection import Connection

__all__ = ["Connection"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(__name__, {"Connection": "gnsq_like.connection.connection"})
