"""An NSQ client for Python, written the blocking way and running on gevent.

``Reader`` consumes (``Batch`` in lists; ``deadletter`` takes what it gives up), ``Producer`` publishes,
``Connection`` is one nsqd for those who steer RDY themselves, ``NsqdHTTPClient`` and ``LookupdClient`` are
the daemons' HTTP APIs. The names are loaded at first use: importing this package imports no gevent, and
nothing in it monkey-patches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gnsq_like._version import __version__

if TYPE_CHECKING:
    from gnsq_like import deadletter, errors
    from gnsq_like.batch import Batch
    from gnsq_like.connection import Connection
    from gnsq_like.deduplicate import Deduplicate
    from gnsq_like.errors import Requeue
    from gnsq_like.http.nsqd import NsqdHTTPClient
    from gnsq_like.http.nsqlookupd import LookupdClient
    from gnsq_like.message import Message
    from gnsq_like.producer import Producer
    from gnsq_like.reader import Reader

__all__ = [
    "Batch",
    "Connection",
    "Deduplicate",
    "LookupdClient",
    "Message",
    "NsqdHTTPClient",
    "Producer",
    "Reader",
    "Requeue",
    "__version__",
    "deadletter",
    "errors",
]

_HOMES = {
    "Batch": "gnsq_like.batch",
    "Connection": "gnsq_like.connection",
    "Deduplicate": "gnsq_like.deduplicate",
    "LookupdClient": "gnsq_like.http.nsqlookupd",
    "Message": "gnsq_like.message",
    "NsqdHTTPClient": "gnsq_like.http.nsqd",
    "Producer": "gnsq_like.producer",
    "Reader": "gnsq_like.reader",
    "Requeue": "gnsq_like.errors",
}

#: Modules that are public names themselves.
_MODULES = ("deadletter", "errors")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"gnsq_like.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
