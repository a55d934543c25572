"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], label: str = "{}") -> str:
    """The end of an error message, ``"; did you mean NAME?"``, or "" if no known name is similar.

    :param known: the names that exist; case is ignored
    :param label: a format for the name
    """
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f"; did you mean {label.format(by_lower[near[0]])}?" if near else ""
