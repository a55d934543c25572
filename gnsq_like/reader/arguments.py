"""The keyword arguments of a Reader as a type, for functions that pass them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gnsq_like.errors import NSQError
from gnsq_like.options import ReaderOptionsDict
from gnsq_like.reader.message import Message
from gnsq_like.wire.negotiated import Authorized


class ReaderArguments(ReaderOptionsDict, total=False):
    """Addresses, hooks and options of a :class:`Reader`: ``def reading(**arguments: Unpack[ReaderArguments])``."""

    nsqd_tcp_addresses: str | Iterable[str]
    lookupd_http_addresses: str | Iterable[str]
    on_connect: Callable[[str], object] | None
    on_disconnect: Callable[[str, NSQError | None], object] | None
    on_error: Callable[[str, NSQError], object] | None
    on_auth: Callable[[str, Authorized], object] | None
    on_backoff: Callable[[int, float], object] | Callable[[int, float, str], object] | None
    on_finish: Callable[[Message], object] | None
    on_requeue: Callable[[Message, float], object] | None
    on_failure: Callable[[Message, BaseException], object] | None
    on_timeout: Callable[[Message], object] | None
    on_giving_up: Callable[[Message], object] | None
    on_expired: Callable[[Message], object] | None
