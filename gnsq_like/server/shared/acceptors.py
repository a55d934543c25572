"""gevent's servers for the daemons: a failed accept is one line of the log, and no traceback.

Where file descriptors are exhausted every accept fails. gevent then waits before the next one, from 10 ms up to a
second, but prints the traceback of each. It waits as well, and prints nothing, for an exception that is no error.
"""

from __future__ import annotations

import errno
import logging

from gevent import GreenletExit
from gevent.baseserver import BaseServer
from gevent.server import StreamServer

from gnsq_like.server.shared.listen import bound_address


class Acceptor(BaseServer):
    """Mixed into gevent's servers."""

    #: The daemon's.
    accept_log = logging.getLogger("gnsq_like")

    def do_read(self) -> object:
        """Called by gevent when clients wait: accept one, or raise."""
        try:
            return super().do_read()
        except OSError as exc:
            if exc.errno in self.fatal_errors:
                raise  # the listener is closed
            if exc.errno in (errno.EMFILE, errno.ENFILE):
                self.make_room()
            address = bound_address(self.socket)
            reason = (exc.strerror or str(exc)).lower()
            self.accept_log.warning("temporary Accept() failure - accept %s: %s", address, reason)
            raise GreenletExit from exc

    def make_room(self) -> None:
        """Called when there is no descriptor for a client: close one that can be spared. Never switches."""


class TCPServer(Acceptor, StreamServer):
    """For TCP clients."""
