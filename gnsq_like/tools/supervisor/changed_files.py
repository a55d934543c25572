"""Notices that code has changed: the files of the loaded modules, by their modification times."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable

#: Installed packages and the standard library do not change during development.
_INSTALLED = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def loaded_files() -> set[str]:
    """The source files of this process's modules, without installed ones."""
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {
        os.path.abspath(name) for name in found if name and name.endswith(".py") and not name.startswith(_INSTALLED)
    }


def files_of(exc: BaseException | None) -> set[str]:
    """The source files that an error has come through; its module may not be loaded."""
    found = set()
    while exc is not None:
        if isinstance(exc, SyntaxError) and exc.filename:
            found.add(os.path.abspath(exc.filename))
        trace = exc.__traceback__
        while trace is not None:
            found.add(os.path.abspath(trace.tb_frame.f_code.co_filename))
            trace = trace.tb_next
        exc = exc.__cause__
    return {name for name in found if os.path.exists(name) and not name.startswith(_INSTALLED)}


class ChangedFiles:
    """Files whose changes are looked for. Next: :meth:`add`, then :meth:`look` now and then."""

    def __init__(self) -> None:
        #: Modification times; None for a file that is missing.
        self._times: dict[str, int | None] = {}

    def add(self, names: Iterable[str]) -> None:
        """Look at these, too."""
        for name in names:
            self._times.setdefault(name, _time_of(name))

    def look(self) -> str | None:
        """The name of a file that has changed since the last look."""
        changed = None
        for name, before in self._times.items():
            now = _time_of(name)
            if now != before:
                self._times[name] = now
                # An editor may replace a file by removing it first; it has changed when it is there again.
                changed = name if now is not None else changed
        return changed


def _time_of(name: str) -> int | None:
    try:
        return os.stat(name).st_mtime_ns
    except OSError:
        return None
