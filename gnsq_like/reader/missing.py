"""Topics that no nsqd has: a Reader of a misspelt topic would wait without an error."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import gevent

from gnsq_like.errors import HTTPError
from gnsq_like.reader.topics import Topics
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.native import monotonic

if TYPE_CHECKING:
    from gnsq_like.http.nsqlookupd import LookupdClient

logger = logging.getLogger(__name__)

#: Seconds after the first round of discovery in which a publisher may still create the topic.
_PATIENCE = 10.0
_MOST_NEAREST = 3


class MissingTopics:
    """The topics of a Reader that discovery does not find, for the log and for ``Reader.stats``.

    :param name: the Reader's, for the log
    :param clients: of the nsqlookupds
    """

    def __init__(
        self, name: str, topics: Topics, clients: list[LookupdClient], clock: Callable[[], float] = monotonic
    ) -> None:
        self._name = name
        self._pattern = topics.pattern
        self._wanted = topics.names if topics.pattern is None else (topics.text,)
        self._clients = clients
        self._clock = clock
        #: Those that the last complete round has not found.
        self.names: list[str] = []
        #: When to log what is missing: once, some time after the first complete round.
        self._due_at: float | None = None
        self._logged: list[str] = []

    def found(self, topics: Iterable[str], complete: bool) -> None:
        """A round of discovery has found these topics; if ``complete``, no others. Never switches."""
        found = set(topics) if self._pattern is None else {self._pattern.pattern for _ in topics}
        for name in found.intersection(self._logged):
            self._logged.remove(name)
            log_soon(logger.info, "%s: topic %r has been found", self._name, name)
        if complete:
            self.names = [name for name in self._wanted if name not in found]
            if self._due_at is None:
                self._due_at = self._clock() + _PATIENCE

    def look(self) -> None:
        """Once a second: log missing topics, if that is due. Never switches."""
        if self._due_at is not None and self._clock() >= self._due_at:
            self._due_at = math.inf
            self._logged = [*self.names]
            if self._logged:
                gevent.spawn(self._log, [*self._logged])

    def _log(self, names: list[str]) -> None:
        """Log that these are missing, with the topics of similar names, for which nsqlookupd is asked. May switch."""
        known: set[str] = set()
        for client in self._clients:
            try:
                known.update(client.topics())
            except HTTPError:
                continue
        where = ", ".join(client.url for client in self._clients)
        for name in names:
            what = f"topic {name!r}" if self._pattern is None else f"a topic that matches {name!r}"
            near = [] if self._pattern is not None else difflib.get_close_matches(name, known, _MOST_NEAREST)
            nearest = f"; nearest: {', '.join(map(repr, near))}" if near else ""
            text = "%s: no nsqd that nsqlookupd at %s knows has %s%s; waiting for it"
            log_soon(logger.warning, text, self._name, where, what, nearest)
