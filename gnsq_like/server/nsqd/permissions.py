"""A client's permissions: AUTH, and the check of each topic and channel (docs/internals 1.4)."""

from __future__ import annotations

import logging

from gnsq_like.server.nsqd.auth_servers import Applicant, AuthFailed, AuthServers
from gnsq_like.server.nsqd.authorizations import Access
from gnsq_like.server.nsqd.tcp import NsqdClient
from gnsq_like.server.shared.connection import Fatal
from gnsq_like.server.shared.tls import common_name

log = logging.getLogger("gnsq_like.nsqd")


class Permissions:
    """One client's permissions.

    :param servers: None if every client may do everything
    """

    def __init__(self, client: NsqdClient, servers: AuthServers | None) -> None:
        self._client = client
        self._servers = servers
        #: When they expire, by the client's clock, and the secret that they were granted for.
        self._until = 0.0
        self._secret = b""

    def authenticate(self, secret: bytes) -> Access:
        """Ask an auth server which permissions ``secret`` grants. Switches; raises Fatal."""
        if self._client.access is not None:
            raise Fatal(b"E_INVALID", b"AUTH already set")
        if self._servers is None:
            raise Fatal(b"E_AUTH_DISABLED", b"AUTH disabled")
        access = self._ask(self._servers, secret)
        if not access.authorizations:
            raise Fatal(b"E_UNAUTHORIZED", b"AUTH no authorizations found")
        return access

    def check(self, command: bytes, topic: str, channel: str = "") -> None:
        """Check that the client may subscribe to the channel or, without one, publish to the topic; raises Fatal.

        Switches if the permissions have expired.
        """
        if self._servers is None:
            return
        access = self._client.access
        if access is None:
            raise Fatal(b"E_AUTH_FIRST", b"AUTH required before " + command)
        if self._until < self._client.clock():
            access = self._ask(self._servers, self._secret)
        if not access.allows(topic, channel):
            detail = f' on "{topic}" "{channel}"'.encode()
            raise Fatal(b"E_UNAUTHORIZED", b"AUTH failed for " + command + detail)

    def _ask(self, servers: AuthServers, secret: bytes) -> Access:
        client = self._client
        tls = client.layers.tls if client.layers is not None else None
        name = common_name(tls.peer_certificate) if tls is not None else ""
        with client.excused():
            try:
                access = servers.ask(Applicant(name, client.ip, secret, tls is not None))
            except AuthFailed as failure:
                # The client is not told the reason.
                log.warning("client(%s): AUTH failed: %s", client.address, failure)
                raise Fatal(b"E_AUTH_FAILED", b"AUTH failed") from None
        self._secret = secret
        self._until = client.clock() + access.ttl
        client.access = access
        return access
