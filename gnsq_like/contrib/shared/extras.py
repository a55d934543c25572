"""The error for a missing package of an extra."""

from __future__ import annotations


def missing(exc: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """The error to raise instead of ``exc``: names the extra that installs the missing package."""
    package = (exc.name or "").partition(".")[0]
    return ModuleNotFoundError(f'{package} is not installed: pip install "gnsq-like[{extra}]"', name=package)
