"""Runs Readers in several processes: starts, watches, replaces and ends them. The command is ``gnsq-like run``.

``Plan`` says what to run; ``Supervisor`` runs it in this process, ``supervise`` in a clean one that takes its place.
The master (``master.py``) loads neither gevent nor the user's code, so that neither can block or crash it.
Workers (``worker.py``) are started by exec and connected by two pipes (``pipes.py``); ``roster.py`` decides, without
I/O, what is to be done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.tools.supervisor.master import Supervisor
    from gnsq_like.tools.supervisor.plan import CannotLoad, Plan
    from gnsq_like.tools.supervisor.process import supervise

__all__ = ["CannotLoad", "Plan", "Supervisor", "supervise"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "CannotLoad": "gnsq_like.tools.supervisor.plan",
            "Plan": "gnsq_like.tools.supervisor.plan",
            "Supervisor": "gnsq_like.tools.supervisor.master",
            "supervise": "gnsq_like.tools.supervisor.process",
        },
    )
