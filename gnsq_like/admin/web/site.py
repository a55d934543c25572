"""What all pages and the API of one application share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from flask import g, request

from gnsq_like.admin.core import Core
from gnsq_like.admin.options import AdminOptions
from gnsq_like.admin.records.audit import AuditLog
from gnsq_like.admin.records.webhook import Webhooks
from gnsq_like.admin.upstream.actions import Outcome
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.admin.upstream.graphite import Graphite
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
        self.identities = Identities(options)
        self.audit = AuditLog(options.audit_log)
        notifications = [options.notification_http_endpoint] if options.notification_http_endpoint else []
        self._notifications = Webhooks(notifications, options.http_client_request_timeout, self._call)
        self.operations = Operations(self.core, self.audit, self._notifications)
        self.core.on_start.append(self._notifications.run)
        self.graphite = Graphite(options) if options.graphite_url else None
        #: The level that PUT /config has set.
        self.log_level = options.log_level

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        self.core.start().call(function, *arguments)

    @property
    def cluster(self) -> Cluster:
        """The cluster of this request."""
        return self.core.clusters[g.cluster]

    @property
    def identity(self) -> Identity:
        """The user of this request."""
        identity: Identity = g.identity
        return identity

    def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function in the core's thread. May switch, or block."""
        return self.core.run(function, *arguments)

    def perform(self, action: str, target: Target) -> Outcome:
        """Carry out an action for the user of this request."""
        return self.operations.perform(action, self.cluster, target, request, self.identity)
