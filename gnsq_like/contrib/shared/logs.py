"""Where the log goes in a command that runs readers, if the application configures none."""

from __future__ import annotations

import logging


def log_to_stderr_unless_configured() -> None:
    """Write warnings and errors to stderr, so that failures of handlers are seen in any case."""
    ours = [each for each in logging.getLogger("gnsq_like").handlers if not isinstance(each, logging.NullHandler)]
    if not ours and not logging.getLogger().handlers:
        logging.basicConfig()
