"""The audit log: who did what, when and with what result, one JSON object a line.

The file gets all entries, and is opened for each so that it may be rotated. The page shows the last ones.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from typing import Any

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.files import open_own

logger = logging.getLogger(__name__)

#: Entries for the page.
KEPT, KEPT_LOG_INS = 200, 20


class AuditLog:
    """The log; from any thread.

    :param path: the file; empty for none, "-" for the process's log
    :raises InvalidOption: the file cannot be written
    """

    def __init__(self, path: str = "") -> None:
        self._path = path
        if path not in ("", "-"):
            try:
                os.close(self._open())
            except OSError as exc:
                raise InvalidOption("audit_log", path, f"it cannot be written: {exc.strerror or exc}") from None
        #: Actions, and refused logins, apart: guessed passwords must not push the actions out. The newest last.
        self._actions: deque[dict[str, object]] = deque(maxlen=KEPT)
        self._log_ins: deque[dict[str, object]] = deque(maxlen=KEPT_LOG_INS)

    def add(self, entry: dict[str, object]) -> None:
        """Add an entry. If the file cannot be written, that is logged: the action has already happened."""
        (self._log_ins if entry["action"] == "log_in" else self._actions).append(entry)
        line = json.dumps(entry, ensure_ascii=False)
        if not self._path:
            logger.debug("%s", line)
        elif self._path == "-":
            logger.info("%s", line)
        else:
            self._write(line)

    def _open(self) -> int:
        return open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)

    def _write(self, line: str) -> None:
        try:
            descriptor = self._open()
            try:
                os.write(descriptor, f"{line}\n".encode("utf-8", "replace"))  # one write: lines do not mix
            finally:
                os.close(descriptor)
        except OSError as exc:
            logger.error("the audit log %s cannot be written: %s; the entry: %s", self._path, exc, line)

    def recent(self) -> list[dict[str, Any]]:
        """The last entries, the newest first."""
        return sorted([*reversed(self._actions), *reversed(self._log_ins)], key=lambda entry: -entry["timestamp"])
