"""The admin for tests, ours or NSQ's own, in front of any daemons."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from gnsq_like.admin import AdminOptions, AdminServer
from gnsq_like.admin.web.app import app_of
from gnsq_like.admin.web.site import Site
from gnsq_like.testing.kinds import reserve
from tests.support import raw
from tests.support.daemons import Kind, wait_for

#: Long enough for daemons on a busy machine: a test that is about one that does not answer has options of its own.
PATIENT: dict[str, Any] = {"http_client_connect_timeout": 60.0, "http_client_request_timeout": 60.0}


class Reply(NamedTuple):
    status: int
    value: Any


class AskedAdmin:
    """An admin at an address, asked for JSON."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """A request to the API; a body is sent as JSON, bytes as they are."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = raw.http(self.address, method, path, data, **headers)
        return Reply(answer.status, json.loads(answer.body) if answer.body else None)

    def get(self, path: str) -> Any:
        """The JSON of a successful GET."""
        reply = self.ask("GET", path)
        assert reply.status == 200, reply
        return reply.value


@contextmanager
def running_admin(kind: Kind = "ours", **options: Any) -> Iterator[AskedAdmin]:
    """Context manager: an admin on a free port.

    :param options: of AdminOptions; for NSQ's own only addresses
    """
    if kind == "real":
        with _real(options) as admin:
            yield admin
        return
    with AdminServer(http_address="127.0.0.1:0", **{**PATIENT, **options}) as server:
        yield AskedAdmin(server.http_address)


@contextmanager
def _real(options: Mapping[str, Sequence[str]]) -> Iterator[AskedAdmin]:
    command = shutil.which("nsqadmin")
    assert command is not None, "no nsqadmin on PATH"
    flags = [
        f"--{'lookupd' if 'lookupd' in name else 'nsqd'}-http-address={each}"
        for name, addresses in options.items()
        for each in addresses
    ]
    flags += ["--http-client-connect-timeout=60s", "--http-client-request-timeout=60s"]
    address, reserved = reserve()
    with reserved:
        process = subprocess.Popen([command, f"--http-address={address}", *flags], stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: _is_listening(address), "nsqadmin to listen")
            yield AskedAdmin(address)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _is_listening(address: str) -> bool:
    try:
        return raw.get(address, "/ping").status == 200
    except OSError:
        return False


@contextmanager
def site(**options: Any) -> Iterator[Site]:
    """Context manager: a site without a server; its test client is ``client_of(site)``."""
    made = Site(AdminOptions(**{**PATIENT, **options}))
    try:
        yield made
    finally:
        made.core.stop(timeout=60.0)


def client_of(site: Site) -> Any:
    """Flask's test client: from the loopback address, as a program and not a browser."""
    return app_of(site).test_client()
