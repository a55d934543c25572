"""An S3 of this process, which moto plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread

import pytest


@contextmanager
def serving_s3() -> Iterator[dict[str, str]]:
    """An S3 without buckets; yields the variables of the environment that lead to it. A test is skipped without moto.

    s3fs keeps its clients, each with the address that it was made with: a test's own is made with
    ``skip_instance_cache=True``.
    """
    pytest.importorskip("moto", reason="moto is not installed")
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    # One request at a time: moto looks for a name and then stores it, which lets two requests at once both create it.
    app = DomainDispatcherApplication(create_backend_app)
    with make_server("127.0.0.1", 0, app, request_handler=Silent) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            _forget_the_last_one(server.server_port)
            url = f"http://127.0.0.1:{server.server_port}"
            yield {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
        finally:
            server.shutdown()
            thread.join()


def _forget_the_last_one(port: int) -> None:
    """Have moto drop all buckets: it has one store for the whole process, whatever the server."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request("POST", "/moto-api/reset")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
