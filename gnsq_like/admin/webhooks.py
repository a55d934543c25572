"""JSON objects that are POSTed to URLs: notifications of actions, and alerts.

They are sent one after the other by a greenlet of some thread, so that the sender of one does not wait. An endpoint
that fails costs its entry, which is logged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from gevent.queue import JoinableQueue

from gnsq_like.errors import HTTPError, HTTPRequestFailed
from gnsq_like.http.client import HTTPClient

logger = logging.getLogger(__name__)

#: Entries that wait for an endpoint; further ones are dropped.
_MOST_WAITING = 1000


class WebhookClient(HTTPClient):
    """POSTs JSON to one URL."""

    _body_type = "application/json"

    def __init__(self, url: str, timeout: float, **options: Any) -> None:
        parts = urlsplit(url)
        super().__init__(f"{parts.scheme}://{parts.netloc}", timeout, **options)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def send(self, entry: dict[str, object]) -> None:
        """POST an object; any 2xx will do. May switch. Raises HTTPError."""
        answer = self._fetch("POST", self._path, json.dumps(entry).encode())
        if not 200 <= answer.status < 300:
            raise HTTPRequestFailed(self.url, f"answered with status {answer.status}")


class Webhooks:
    """Endpoints that get everything that is sent.

    :param call: calls a function in the thread of :meth:`run`, from any thread
    """

    def __init__(self, urls: Iterable[str], timeout: float, call: Callable[..., object]) -> None:
        self._clients = [WebhookClient(url, timeout, verify=True) for url in urls]
        self._call = call
        #: Made in that thread.
        self._waiting: JoinableQueue[dict[str, object]] | None = None

    def send(self, entry: dict[str, object]) -> None:
        """Send an object to all; returns at once. From any thread."""
        if self._clients:
            self._call(self._put, entry)

    def _put(self, entry: dict[str, object]) -> None:
        if self._waiting is None:
            self._waiting = JoinableQueue()
        if self._waiting.qsize() >= _MOST_WAITING:
            logger.error("too many notifications are waiting; dropped: %s", entry)
        else:
            self._waiting.put(entry)

    def run(self) -> None:
        """A greenlet's function: send what is put. May switch."""
        if not self._clients:
            return
        if self._waiting is None:
            self._waiting = JoinableQueue()
        while True:
            entry = self._waiting.get()
            try:
                for client in self._clients:
                    self._send_to(client, entry)
            finally:
                self._waiting.task_done()

    def _send_to(self, client: WebhookClient, entry: dict[str, object]) -> None:
        try:
            client.send(entry)
        except HTTPError as exc:
            logger.error("notification failed: %s", exc)

    def drain(self, timeout: float) -> bool:
        """In the thread of :meth:`run`: wait until all is sent; False after ``timeout`` seconds. May switch."""
        return self._waiting is None or bool(self._waiting.join(timeout))

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()
