"""The page of a run: served while it runs, and written as its report; one template, and figures as people read them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnsq_like._version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup

HERE = Path(__file__).parent
#: Units of the view box of a graph.
_WIDTH, _HEIGHT = 120, 28


def render(
    status: Mapping[str, Any],
    *,
    every: int = 0,
    covers: str = "",
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
) -> str:
    """The page as HTML.

    :param status: of a run (``RunStatus.current``)
    :param every: seconds between two refreshes of a page that is served; 0 for a file that needs nothing beside itself
    :param covers: the time that a report covers
    :param tables: more tables, each with its title, its headings and its rows
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"time": _time, "size": size_text, "number": _number, "clock": _clock, "share": _share}
    environment.globals |= {"spark": _spark, "version": __version__}
    style = "" if every else (HERE / "static" / "live.css").read_text("utf-8")
    return environment.get_template("page.html").render(
        status=status, every=every, covers=covers, tables=tables, style=style
    )


def time_text(seconds: float) -> str:
    """A duration for people: "12 ms", "3.4 s", "31 min", "1.2 h"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48), ("d", 86400, float("inf"))):
        amount = seconds / length
        if amount < most:
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    raise AssertionError("a duration is below infinity")


def size_text(count: int) -> str:
    """Bytes for people: "12.5 MB"."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def _time(value: float | None) -> str:
    if value is None:
        return "–"
    return "0 s" if value == 0 else time_text(value)


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0%}" if value in (0, 1) or value >= 0.1 else f"{max(value, 0.0001):.2%}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _spark(values: Sequence[float | None], label: str) -> Markup:
    """A small graph, from 0 to the highest value; gaps where nothing is known."""
    from markupsafe import Markup

    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    top, step = max(*known, 1e-9), _WIDTH / (len(values) - 1)
    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{place * step:.1f},{_HEIGHT - 1 - (_HEIGHT - 2) * value / top:.1f}")
    path = " ".join(f"M{' '.join(run)}" for run in runs if len(run) > 1)
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path d="{}" vector-effect="non-scaling-stroke"/></svg>'
    ).format(_WIDTH, _HEIGHT, label, path)
