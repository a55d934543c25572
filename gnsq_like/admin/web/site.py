"""The state that all pages and the API of an application share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from flask import g, request

from gnsq_like.admin.admin_options import AdminOptions
from gnsq_like.admin.audit import AuditLog
from gnsq_like.admin.core import Core
from gnsq_like.admin.history.alerts import Alert
from gnsq_like.admin.history.columns import FINE_SECONDS
from gnsq_like.admin.history.recorder import Recorder
from gnsq_like.admin.history.store import Store
from gnsq_like.admin.letters import Letters
from gnsq_like.admin.notifications import Notifications
from gnsq_like.admin.peek import Peeks
from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.admin.upstream.overview import Overview
from gnsq_like.admin.web.guard import Guard
from gnsq_like.admin.web.identity import Identities, Identity
from gnsq_like.admin.web.operations import Operations, Target

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Site:
    """One application's state.

    :raises InvalidOption: if a file that an option names cannot be used
    """

    def __init__(self, options: AdminOptions) -> None:
        self.options = options
        self.core = Core(options)
        self.guard = Guard(options)
        self.audit = AuditLog(options.audit_log)
        self.identities = Identities(options, self.core, self.audit)
        notify: Callable[[dict[str, object]], object] = bool
        if options.notification_http_endpoint:
            endpoint = options.notification_http_endpoint, options.http_client_request_timeout
            notifications = Notifications(*endpoint, self._call)
            notify = notifications.send
            self.core.on_stop.append(notifications.close)
        self.operations = Operations(self.core, self.audit, notify)
        store = Store(options.history_file) if options.history_file else None
        #: By cluster.
        self.recorders = {name: self._recorder(name, store) for name in self.core.clusters}
        self.peeks, self.letters = Peeks(options.reader_options), Letters(options.reader_options)
        self.core.on_stop += [self.peeks.stop, self.letters.stop]
        #: The level that PUT /config has set.
        self.log_level = options.log_level

    def _recorder(self, name: str, store: Store | None) -> Recorder:
        recorder = Recorder(
            name,
            lambda max_age: self.core.clusters[name].overview(max_age),
            self.options,
            lambda: self.core.clusters[name].departures,
            store,
        )
        self.core.on_start.append(recorder.restore)
        if self.options.history:
            self.core.on_start.append(recorder.run)
        return recorder

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        self.core.start().call(function, *arguments)

    @property
    def cluster(self) -> Cluster:
        """The cluster of this request."""
        return self.core.clusters[g.cluster]

    @property
    def recorder(self) -> Recorder:
        """The history of this request's cluster; for the core's thread."""
        return self.recorders[g.cluster]

    def look(self) -> Overview:
        """An overview for programs, which watch this request's cluster. May switch, or block.

        It may be as old as those of the history, so that programs cause no additional polls.
        """
        return self.run(self.recorder.look, FINE_SECONDS)

    @property
    def alerts(self) -> dict[Alert, float]:
        """Alerts of this request's cluster, with their beginnings; the newest first."""
        return self.recorder.alerts.newest_first()

    def recorder_of(self, cluster: str) -> Recorder:
        """The history of a cluster; for the core's thread."""
        return self.recorders[cluster]

    @property
    def identity(self) -> Identity:
        """The user of this request."""
        identity: Identity = g.identity
        return identity

    def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function in the core's thread. May switch, or block."""
        return self.core.run(function, *arguments)

    def perform(self, action: str, target: Target) -> Performed:
        """Carry out an action for the user of this request."""
        return self.operations.perform(action, self.cluster, target, request, self.identity)
