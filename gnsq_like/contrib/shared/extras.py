"""What to say when a package that an extra brings is not there."""

from __future__ import annotations


def missing(exc: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """The error to raise in place of ``exc``: says which extra brings what could not be imported."""
    package = (exc.name or "").partition(".")[0]
    return ModuleNotFoundError(f'{package} is not installed: pip install "gnsq-like[{extra}]"', name=package)
