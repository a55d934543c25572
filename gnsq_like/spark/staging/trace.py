"""The points that a batch passes, for tests that stop or kill a process exactly there.

The option ``trace`` names a function as "module:function"; it is called with the point's name and with what is
being worked on. Without the option a point costs one call of a function that does nothing. The points, in order:

- driver: latestOffset, partitions, and after the batch commit-start, commit-middle, commit-end;
- executor: before-publish, after-publish, after-FIN (for each segment), after-END, before-yield, after-yield.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

#: Called with the name of a point, and what is being worked on.
Trace = Callable[[str, object], None]

POINTS = (
    "latestOffset",
    "partitions",
    "before-publish",
    "after-publish",
    "after-FIN",
    "after-END",
    "before-yield",
    "after-yield",
    "commit-start",
    "commit-middle",
    "commit-end",
)


def nothing(point: str, subject: object) -> None:
    """What is called at each point, usually."""


def tracer(name: str) -> Trace:
    """The function of this name, "module:function"; one that does nothing for ""."""
    if not name:
        return nothing
    module, _, function = name.partition(":")
    found: Any = getattr(import_module(module), function)
    return found
