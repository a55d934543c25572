"""NSQ in Flask applications: the extension ``NSQ``, and its commands for ``flask``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.contrib.flask.extension import NSQ

__all__ = ["NSQ"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(__name__, {"NSQ": "gnsq_like.contrib.flask.extension"})
