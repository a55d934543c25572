"""Consuming: ``Reader`` and what it is made of.

``reader`` has the public methods, ``setup`` the checked arguments, ``running`` one start up to the end of its stop, and
``group`` several Readers; a ``subscription`` is one connection with its messages; ``flow_control`` alone decides RDY,
with ``policy``; ``handlers`` calls the handler and answers messages by its outcome; ``batch`` collects messages into
lists; ``timeouts`` knows which are slow, overdue or to be touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.reader.batch import Batch
    from gnsq_like.reader.group import ReaderGroup
    from gnsq_like.reader.message import Message
    from gnsq_like.reader.reader import Reader

__all__ = ["Batch", "Message", "Reader", "ReaderGroup"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Batch": "gnsq_like.reader.batch",
            "Message": "gnsq_like.reader.message",
            "Reader": "gnsq_like.reader.reader",
            "ReaderGroup": "gnsq_like.reader.group",
        },
    )
