"""An S3 of this process, which moto plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest


@contextmanager
def serving_s3() -> Iterator[str]:
    """Its URL. A test is skipped without moto."""
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
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
