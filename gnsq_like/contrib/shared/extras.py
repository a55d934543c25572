"""The error for a missing package."""

from __future__ import annotations


def missing(exc: ModuleNotFoundError, extra: str = "", *, distribution: str = "") -> ModuleNotFoundError:
    """The error to raise instead of ``exc``: names the missing package and its extra.

    :param extra: the extra that it belongs to
    :param distribution: or the name of the distribution
    """
    package = (exc.name or "").partition(".")[0]
    wanted = f"install the extra [{extra}]" if extra else f"pip install {distribution}"
    return ModuleNotFoundError(f"{package} is not installed: {wanted}", name=package)
