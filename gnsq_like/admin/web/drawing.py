"""Graphs as inline SVG, drawn by the server without scripts, with classes of the stylesheet."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from markupsafe import Markup, escape

from gnsq_like.admin.web.words import compact, number

#: Units of the view box of a small graph.
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 22
#: Of a large one; its width is stretched to that of the page.
_WIDTH, _HEIGHT = 600, 120
#: The least top of its scale: the middle of an idle graph is then 1, not a fraction of a message.
_LEAST_TOP = 2.0


def spark(values: Sequence[float], label: str, kind: str = "") -> Markup:
    """A small graph beside a figure, from 0 to the highest value.

    :param label: read by screen readers
    :param kind: a class for its colour
    """
    known = [value for value in values if value == value]
    if len(known) < 2:
        return Markup('<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true"></svg>').format(
            _SPARK_WIDTH, _SPARK_HEIGHT
        )
    points = _points(values, _SPARK_WIDTH, _SPARK_HEIGHT, max(*known, 1e-9))
    return Markup(
        '<svg class="spark {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(kind, _SPARK_WIDTH, _SPARK_HEIGHT, label, _paths(points, _SPARK_HEIGHT))


def chart(series: Sequence[tuple[float, float]], title: str, unit: str = "", kind: str = "") -> Markup:
    """A large graph with its scale.

    :param series: times (epoch) and values
    """
    known = [value for _, value in series if value == value]
    if len(known) < 2:
        return Markup(
            '<figure class="chart {}"><figcaption>{}</figcaption><p class="quiet">collecting …</p></figure>'
        ).format(kind, title)
    top = max(_LEAST_TOP, nice_above(max(known)))
    points = _points([value for _, value in series], _WIDTH, _HEIGHT, top)
    lines = Markup("").join(
        Markup('<line x1="0" y1="{}" x2="{}" y2="{}" class="grid"/>').format(y, _WIDTH, y) for y in (0.5, _HEIGHT / 2)
    )
    summary = f"{title}: highest {number(max(known))}{unit}, lowest {number(min(known))}{unit}"
    return Markup(
        '<figure class="chart {kind}"><figcaption>{title}<small>highest {highest}{unit}</small></figcaption>'
        '<div class="plot"><svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        'aria-label="{summary}">{lines}{paths}</svg><span class="most">{top}</span><span class="mid">{mid}</span></div>'
        '<div class="times"><span>{first}</span><span>{end}</span></div></figure>'
    ).format(
        kind=kind,
        title=title,
        highest=compact(max(known)),
        unit=unit,
        width=_WIDTH,
        height=_HEIGHT,
        summary=summary,
        lines=lines,
        paths=_paths(points, _HEIGHT),
        top=compact(top),
        mid=compact(top / 2),
        first=_clock(series[0][0]),
        end=_clock(series[-1][0]),
    )


def bar(part: float, whole: float, label: str) -> Markup:
    """A bar for a part of a whole."""
    width = 0 if whole <= 0 else max(0.0, min(1.0, part / whole)) * 100
    return Markup(
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="100" height="4" rx="2"/><rect width="{}" height="4" rx="2"/></svg>'
    ).format(label, f"{width:.1f}")


def nice_above(value: float) -> float:
    """The lowest of 1, 2, 5, 10, 20 ... that is at least the value."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= value * 0.999999)


def _points(values: Sequence[float], width: float, height: float, top: float) -> list[tuple[float, float] | None]:
    step = width / max(1, len(values) - 1)
    room = height - 3
    return [
        (place * step, height - 1.5 - room * max(0.0, value) / top) if value == value else None
        for place, value in enumerate(values)
    ]


def _paths(points: Sequence[tuple[float, float] | None], height: float) -> Markup:
    """The line and the area below it, with gaps where values are missing."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    line, area = [], []
    for run in runs:
        if run:
            text = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            line.append(f"M{text}" if len(run) > 1 else f"M{text} h1")
            area.append(f"M{run[0][0]:.1f},{height} L{text} L{run[-1][0]:.1f},{height}Z")
    return Markup('<path class="area" d="{}"/><path class="line" d="{}" vector-effect="non-scaling-stroke"/>').format(
        escape(" ".join(area)), escape(" ".join(line))
    )


def _clock(at: float) -> str:
    return time.strftime("%H:%M", time.localtime(at))
