"""The charts of the report, drawn as SVG by matplotlib. Nothing here opens a window or keeps a figure."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import matplotlib as mpl
from matplotlib import dates as _dates
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from gnsq_like.spark.pipeline.metrics import MOST_ATTEMPTS, percentile
from gnsq_like.spark.pipeline.spans import Span

#: The module has no types.
dates: Any = _dates

#: Inches; the page scales the charts together with their text.
_SIZE = (5.2, 2.6)
#: How many bars have room for numbers above them.
_MOST_LABELS = 6
_BLUE, _RED, _DIM, _LINE = "#2563eb", "#dc2626", "#667085", "#e4e7ec"
#: For p50, p95 and p99.
_SHADES = ("#1e3a8a", "#2563eb", "#93c5fd")
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gnsq_like",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _DIM,
    "xtick.color": _DIM,
    "ytick.color": _DIM,
}


def rate(spans: Sequence[Span]) -> str:
    """Messages a second in each span."""
    figure, axes = _axes()
    _bars(axes, spans, [span.rate for span in spans], _BLUE, "all")
    if any(span.rejected for span in spans):
        _bars(axes, spans, [span.rejected / span.length for span in spans], _RED, "rejected")
        _legend(axes)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"))
    return _drawn(figure)


def latency(spans: Sequence[Span]) -> str:
    """Percentiles of the latency in each span that has messages."""
    figure, axes = _axes()
    there = [span for span in spans if span.messages]
    middles = [dates.date2num(span.start + timedelta(seconds=span.length / 2)) for span in there]
    for share, colour in zip((0.99, 0.95, 0.5), reversed(_SHADES), strict=True):
        values = [percentile(span.latencies, share) for span in there]
        axes.plot(middles, values, color=colour, marker="o", markersize=2.5, linewidth=1.2, label=f"p{share * 100:g}")
    axes.set_yscale("log")
    shown = [value for line in axes.lines for value in line.get_ydata()]
    axes.set_ylim(min(shown) / 2, max(shown) * 2)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(shown) < 100 * min(shown) else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
    axes.minorticks_off()
    _dated(axes, spans)
    _legend(axes)
    return _drawn(figure)


def attempts(counts: Mapping[int, int]) -> str:
    """The number of messages by attempts."""
    figure, axes = _axes()
    numbers = range(1, max(counts) + 1)
    amounts = [counts.get(number, 0) for number in numbers]
    bars = axes.bar(list(numbers), amounts, color=_BLUE, width=0.6)
    if len(amounts) <= _MOST_LABELS:
        axes.bar_label(bars, labels=[f"{amount:,}" if amount else "" for amount in amounts], color=_DIM, padding=2)
    axes.set_yscale("log")
    axes.set_ylim(0.8, max(amounts) * 4)
    axes.set_xlim(0.4, max(3, len(amounts)) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{MOST_ATTEMPTS} or more" if value == MOST_ATTEMPTS else f"{value:.0f}")
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else ""))
    axes.minorticks_off()
    return _drawn(figure)


def depth(spans: Sequence[Span]) -> str:
    """How many messages waited in nsqd; "" if that is not known."""
    known = [(span.start + timedelta(seconds=span.length), span.depth) for span in spans if span.depth is not None]
    if not known:
        return ""
    figure, axes = _axes()
    axes.plot(
        [dates.date2num(at) for at, _ in known],
        [amount for _, amount in known],
        clip_on=False,
        color=_BLUE,
        marker="o",
        markersize=2.5,
        linewidth=1.2,
    )
    axes.set_ylim(0, max(1, *(amount * 1.1 for _, amount in known)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _dated(axes, spans)
    return _drawn(figure)


def _axes() -> tuple[Figure, Any]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _bars(axes: Any, spans: Sequence[Span], values: list[float], colour: str, label: str) -> None:
    width = spans[0].length / 86400
    axes.bar(
        [dates.date2num(span.start) for span in spans],
        values,
        width=width * 0.9,
        align="edge",
        color=colour,
        label=label,
    )
    _dated(axes, spans)


def _dated(axes: Any, spans: Sequence[Span]) -> None:
    first, last = spans[0], spans[-1]
    margin = timedelta(seconds=first.length / 2)
    axes.set_xlim(
        dates.date2num(first.start - margin), dates.date2num(last.start + timedelta(seconds=last.length) + margin)
    )
    locator = dates.AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _time(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"


def _drawn(figure: Figure) -> str:
    with mpl.rc_context(_STYLE):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
