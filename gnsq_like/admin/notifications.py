"""The notification of actions: a JSON object for each is POSTed to one URL, as nsqadmin does.

The user does not wait for it. If the endpoint fails, the entry is dropped, which is logged.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

import gevent

from gnsq_like.errors import HTTPError, HTTPRequestFailed
from gnsq_like.http.client import HTTPClient

logger = logging.getLogger(__name__)

#: Entries that wait for the endpoint; further ones are dropped.
MOST_WAITING = 1000


class Notifications(HTTPClient):
    """Sends entries to a URL, one after the other.

    :param url: where to; its credentials are sent as basic authorization
    :param timeout: seconds for each
    :param call: calls a function in the thread that sends, from any thread
    """

    _body_type = "application/json"

    def __init__(self, url: str, timeout: float, call: Callable[..., object]) -> None:
        parts = urlsplit(url)
        super().__init__(f"{parts.scheme}://{parts.netloc}", timeout)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._call = call
        #: The entry that is being sent, and those that wait for it; each with the monotonic time until which it may.
        self._waiting: deque[tuple[float, dict[str, object]]] = deque()

    def send(self, entry: dict[str, object]) -> None:
        """Send an object; returns at once. From any thread."""
        self._call(self._begin, entry)

    def _begin(self, entry: dict[str, object]) -> None:
        if len(self._waiting) >= MOST_WAITING:
            logger.error("too many notifications are waiting; dropped: %s", entry)
            return
        self._waiting.append((time.monotonic() + self._timeout, entry))
        if len(self._waiting) == 1:
            gevent.spawn(self._send_all)

    def _send_all(self) -> None:
        """One greenlet sends all, in order: of several that wait for a connection, any may be the next."""
        while self._waiting:
            until, entry = self._waiting[0]
            try:
                if time.monotonic() >= until:
                    raise HTTPRequestFailed(self.url, f"earlier ones have taken {self._timeout:g} s")
                answer = self._fetch("POST", self._path, json.dumps(entry).encode())
                if not 200 <= answer.status < 300:
                    raise HTTPRequestFailed(self.url, f"answered with status {answer.status}")
            except HTTPError as exc:
                logger.error("notification failed: %s", exc)
            finally:
                self._waiting.popleft()
