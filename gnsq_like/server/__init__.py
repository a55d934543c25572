"""NSQ's daemons in Python, for development, tests and small installations.

::

    from gnsq_like.server import Nsqd, Nsqlookupd

    with Nsqlookupd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0") as lookupd:
        with Nsqd(
            tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", lookupd_tcp_addresses=(lookupd.tcp_address,)
        ) as nsqd:
            print(nsqd.tcp_address)

With ``data_path="/var/lib/nsqd"``, an Nsqd stores messages there that do not fit in memory, and all messages when it
stops, in the file formats of NSQ's own nsqd. Without it, everything is in memory.

The daemons run on gevent in the thread that starts them, patched or not; nothing here patches anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.server.daemon_options import NsqdOptions, NsqlookupdOptions
    from gnsq_like.server.nsqd.nsqd import Nsqd
    from gnsq_like.server.nsqlookupd.nsqlookupd import Nsqlookupd

__all__ = ["Nsqd", "NsqdOptions", "Nsqlookupd", "NsqlookupdOptions"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Nsqd": "gnsq_like.server.nsqd.nsqd",
            "NsqdOptions": "gnsq_like.server.daemon_options",
            "Nsqlookupd": "gnsq_like.server.nsqlookupd.nsqlookupd",
            "NsqlookupdOptions": "gnsq_like.server.daemon_options",
        },
    )
