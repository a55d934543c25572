"""NSQ's daemons in Python, for development, tests and small installations.

::

    from gnsq_like.server import Nsqd, Nsqlookupd

    with Nsqlookupd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0") as lookupd:
        with Nsqd(
            tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", lookupd_tcp_addresses=(lookupd.tcp_address,)
        ) as nsqd:
            print(nsqd.tcp_address)

With ``data_path="/var/lib/nsqd"`` an Nsqd keeps there what does not fit in memory, and everything when it stops, in
the files of NSQ's own nsqd. Without, all is in memory.

They run on gevent in the thread that starts them, patched or not; nothing here patches anything.
"""

from gnsq_like.server.lookupd import Nsqlookupd
from gnsq_like.server.nsqd import Nsqd
from gnsq_like.server.options import NsqdOptions, NsqlookupdOptions

__all__ = ["Nsqd", "NsqdOptions", "Nsqlookupd", "NsqlookupdOptions"]
