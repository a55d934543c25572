"""The admin's state in a process: a thread that polls the clusters, and the results that it keeps.

All requests to daemons run in one background thread with a hub, so that a page works in any kind of web server:
threads, gevent's greenlets, patched or not. It starts with the first request in a process, so an application may be
made before the server forks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import gevent

from gnsq_like.admin.admin_options import AdminOptions, split_kind
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.errors import InvalidOption, NotRunning
from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.hub_thread import HubThread
from gnsq_like.runtime.thread_pool import ThreadPool

_A = TypeVar("_A")
_T = TypeVar("_T")

#: Bytes of the largest response from a daemon: 500 topics with 4 channels each take 1 MB, their clients more.
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
#: Seconds that a call may take beyond the time for upstreams.
_GRACE = 30.0


class Core:
    """The background thread and the clusters; one for each application.

    :raises InvalidOption: if a TLS file cannot be used
    """

    def __init__(self, options: AdminOptions) -> None:
        self.options = options
        self._verify = _verify(options)
        cert, key = options.http_client_tls_cert, options.http_client_tls_key
        self._cert = (cert, key) if cert else None
        #: Native and held without switching, because greenlets of one thread may meet here.
        self._lock: Any = native.allocate_lock()
        self._pid = 0
        self._is_stopped = False
        self._thread = HubThread("gnsq_like admin")
        #: For :meth:`compute`; made in the thread.
        self._pool: ThreadPool | None = None
        #: The clusters of this process, by name; the first is the default.
        self.clusters: dict[str, Cluster] = {}
        #: Each runs as a greenlet of the thread, from its start.
        self.on_start: list[Callable[[], None]] = []
        #: Called in the thread before it ends.
        self.on_stop: list[Callable[[], None]] = []
        self._make_clusters()

    def _make_clusters(self) -> None:
        options = self.options
        wanted: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        if options.lookupd_http_addresses or options.nsqd_http_addresses:
            wanted[""] = (options.lookupd_http_addresses, options.nsqd_http_addresses)
        for name, given in options.clusters.items():
            are_nsqds, addresses = split_kind(given)
            wanted[name] = ((), addresses) if are_nsqds else (addresses, ())
        http = {
            "timeout": options.http_client_request_timeout,
            "connect_timeout": options.http_client_connect_timeout,
            "verify": self._verify,
            "cert": self._cert,
            "max_answer_bytes": _MAX_ANSWER_BYTES,
        }
        self.clusters = {
            name: Cluster(name, Daemons(nsqds, lookupds, http)) for name, (lookupds, nsqds) in wanted.items()
        }

    def start(self) -> HubHandle:
        """Start the thread, unless it runs in this process. May block briefly.

        :raises NotRunning: after :meth:`stop`
        """
        with self._lock:
            if self._is_stopped:
                raise NotRunning("it has been stopped")
            if self._pid != os.getpid():
                if self._pid:  # a forked child has none of its connections
                    self._make_clusters()
                    self._pool = None
                self._pid = os.getpid()
                handle = self._thread.start()
                for function in self.on_start:
                    handle.call(gevent.spawn, function)
            return self._thread.start()

    def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in the thread, and return its result or raise what it raises. May switch, or block.

        :raises NotRunning: after :meth:`stop`, or if that comes before the result
        """
        handle = self.start()
        result: _T = handle.run(function, *arguments, timeout=2 * self.options.http_client_request_timeout + _GRACE)
        return result

    def compute(self, function: Callable[[_A], _T], argument: _A) -> _T:
        """Run a slow function in a second thread, one at a time. Call this in the core's thread; may switch.

        One at a time leaves the other core for pages.
        """
        if self._pool is None:
            self._pool = ThreadPool(1)
        return self._pool.call(function, argument)

    def _end_computing(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread, for good; twice is fine. May block."""
        with self._lock:
            self._is_stopped = True
            handle = self._thread.hub_handle
        if handle is None or self._pid != os.getpid():
            return
        self._pid = 0
        for function in (*self.on_stop, self._end_computing, *(cluster.close for cluster in self.clusters.values())):
            handle.run(function, timeout=timeout)
        self._thread.end(timeout)


def _verify(options: AdminOptions) -> bool | str:
    for prefix in ("http_client_tls", "nsqd_tls"):
        for path in (getattr(options, f"{prefix}_{name}") for name in ("root_ca_file", "cert", "key")):
            if path and not os.access(path, os.R_OK):
                raise InvalidOption(prefix, path, "this file cannot be read")
    if options.http_client_tls_insecure_skip_verify:
        return False
    return options.http_client_tls_root_ca_file or True
