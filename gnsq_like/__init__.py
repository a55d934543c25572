"""An NSQ client for Python, written the blocking way and running on gevent.

``Reader`` consumes, ``Producer`` publishes, ``Connection`` is one nsqd for those who steer RDY
themselves, ``NsqdHTTPClient`` and ``LookupdClient`` are the daemons' HTTP APIs. The names are loaded at
first use: importing this package imports no gevent, and nothing in it monkey-patches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gnsq_like._version import __version__

if TYPE_CHECKING:
    from gnsq_like import errors
    from gnsq_like.connection import Connection
    from gnsq_like.errors import Requeue
    from gnsq_like.http.nsqd import NsqdHTTPClient
    from gnsq_like.http.nsqlookupd import LookupdClient
    from gnsq_like.message import Message
    from gnsq_like.producer import Producer
    from gnsq_like.reader import Reader

__all__ = [
    "Connection",
    "LookupdClient",
    "Message",
    "NsqdHTTPClient",
    "Producer",
    "Reader",
    "Requeue",
    "__version__",
    "errors",
]

_HOMES = {
    "Connection": "gnsq_like.connection",
    "LookupdClient": "gnsq_like.http.nsqlookupd",
    "Message": "gnsq_like.message",
    "NsqdHTTPClient": "gnsq_like.http.nsqd",
    "Producer": "gnsq_like.producer",
    "Reader": "gnsq_like.reader",
    "Requeue": "gnsq_like.errors",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("gnsq_like.errors")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
