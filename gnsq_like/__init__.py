"""An NSQ client for Python on gevent, with a blocking API.

``Reader`` consumes messages (``Batch``: lists of them; ``deadletter``: keeps those given up), ``ReaderGroup`` is
several of them as one, ``run`` a process that only consumes. ``Producer`` publishes, ``Connection`` is one connection
for applications that control RDY themselves, ``NsqdHTTPClient`` and ``LookupdClient`` are the daemons' HTTP APIs. Names
are loaded at first use: importing this package does not import gevent, and nothing in it monkey-patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names
from gnsq_like._version import __version__

if TYPE_CHECKING:
    from gnsq_like import deadletter, errors
    from gnsq_like.connection.connection import Connection
    from gnsq_like.deduplicate import Deduplicate
    from gnsq_like.errors import Requeue
    from gnsq_like.http.nsqd import NsqdHTTPClient
    from gnsq_like.http.nsqlookupd import LookupdClient, NsqdNode
    from gnsq_like.producer.producer import Producer
    from gnsq_like.reader.batch import Batch
    from gnsq_like.reader.group import ReaderGroup
    from gnsq_like.reader.message import Message
    from gnsq_like.reader.reader import Reader, ReaderArguments
    from gnsq_like.wire.negotiated import Authorized
    from gnsq_like.workers.reader_process import run

__all__ = [
    "Authorized",
    "Batch",
    "Connection",
    "Deduplicate",
    "LookupdClient",
    "Message",
    "NsqdHTTPClient",
    "NsqdNode",
    "Producer",
    "Reader",
    "ReaderArguments",
    "ReaderGroup",
    "Requeue",
    "__version__",
    "deadletter",
    "errors",
    "run",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Authorized": "gnsq_like.wire.negotiated",
            "Batch": "gnsq_like.reader.batch",
            "Connection": "gnsq_like.connection.connection",
            "Deduplicate": "gnsq_like.deduplicate",
            "LookupdClient": "gnsq_like.http.nsqlookupd",
            "Message": "gnsq_like.reader.message",
            "NsqdHTTPClient": "gnsq_like.http.nsqd",
            "NsqdNode": "gnsq_like.http.nsqlookupd",
            "Producer": "gnsq_like.producer.producer",
            "Reader": "gnsq_like.reader.reader",
            "ReaderArguments": "gnsq_like.reader.reader",
            "ReaderGroup": "gnsq_like.reader.group",
            "Requeue": "gnsq_like.errors",
            "deadletter": "gnsq_like.deadletter",
            "errors": "gnsq_like.errors",
            "run": "gnsq_like.workers.reader_process",
        },
    )
