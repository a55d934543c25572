"""The results of bench.py as a table for a terminal or in Markdown, and as a chart in SVG."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _modes import MODES, Mode
from _publishers import Done

#: For each mode's name: its runs, one of each round.
Results = dict[str, list[Done]]


class Row(NamedTuple):
    """A mode's figures: messages a second (median, least, most), microseconds of CPU for a message (median), and the
    median over the rounds of its rate by that of the section's bare loop."""

    mode: Mode
    rate: float
    least: float
    most: float
    cpu: float
    ratio: float | None


def rates_of(runs: list[Done]) -> list[float]:
    return [run.messages / run.seconds for run in runs]


def rows(results: Results) -> Iterator[Row]:
    for mode in MODES:
        runs = results.get(mode.name)
        if not runs:
            continue
        rates = rates_of(runs)
        bare = results.get(f"{mode.section}: bare")
        ratio = None
        if bare and mode.client != "bare":
            ratio = statistics.median([a / b for a, b in zip(rates, rates_of(bare), strict=True)])
        cpu = statistics.median([1e6 * run.cpu / run.messages for run in runs])
        yield Row(mode, statistics.median(rates), min(rates), max(rates), cpu, ratio)


HEADINGS = ("client", "messages/s", "least", "most", "of bare", "CPU µs")


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return (row.mode.client, f"{row.rate:,.0f}", f"{row.least:,.0f}", f"{row.most:,.0f}", ratio, f"{row.cpu:.2f}")


def text(results: Results) -> str:
    lines = []
    section = ""
    for row in rows(results):
        if row.mode.section != section:
            section = row.mode.section
            lines.append(f"\n{section:<34}" + "".join(f"{heading:>12}" for heading in HEADINGS[1:]))
        client, *figures = _cells(row)
        lines.append(f"  {client:<32}" + "".join(f"{figure:>12}" for figure in figures))
    return "\n".join(lines)


def markdown(results: Results, about: str) -> str:
    lines = [about, "", f"| | {' | '.join(HEADINGS)} |", "|---|---|" + "--:|" * (len(HEADINGS) - 1)]
    section = ""
    for row in rows(results):
        title = row.mode.section if row.mode.section != section else ""
        section = row.mode.section
        lines.append(f"| {title} | {' | '.join(_cells(row))} |")
    return "\n".join(lines) + "\n"


#: The sections of the chart. The bare loops are no clients, so they are a mark and not a bar.
#: It shows what a second of the client's CPU achieves: on a machine with other work, rates measure that work, too.
_CHART = (
    "consuming, 100 bytes",
    "100 a second, at once",
    "100 greenlets, patched",
    "100 greenlets",
    "MPUB of 100",
    "one caller",
)
_OURS, _OTHERS, _INK = "#2f6fdb", "#9aa4b2", "#6b7280"


def svg_pyplot(salt: str) -> Any:
    """matplotlib's pyplot for SVG files: text stays text, and the same figures give the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif", "font.size": 9})
    from matplotlib import pyplot

    return pyplot


def chart(results: Results, path: Path) -> None:
    """One panel a section, a bar a client."""
    pyplot = svg_pyplot("bench")
    found = list(rows(results))
    sections = [(name, [row for row in found if row.mode.section == name]) for name in _CHART]
    sections = [(name, [row for row in members if "," not in row.mode.client]) for name, members in sections if members]
    heights = [len(members) for _, members in sections]
    figure, panels = pyplot.subplots(
        len(sections), 1, figsize=(7, 0.28 * sum(heights) + 0.45 * len(sections)), height_ratios=heights, squeeze=False
    )
    for axes, (name, members) in zip(panels[:, 0], sections, strict=True):
        bars = [row for row in members if row.mode.client != "bare"]
        bars.sort(key=lambda row: 1 / row.cpu)
        axes.barh(
            [row.mode.client for row in bars],
            [1e6 / row.cpu for row in bars],
            color=[_OURS if row.mode.client == "gnsq_like" else _OTHERS for row in bars],
        )
        for place, row in enumerate(bars):
            axes.text(1e6 / row.cpu, place, f" {1e6 / row.cpu:,.0f}", va="center", color=_INK, fontsize=8)
        for row in members:
            if row.mode.client == "bare":
                axes.axvline(1e6 / row.cpu, color=_INK, linestyle=":", linewidth=1)
        axes.set_title(f"{name}: messages for a second of CPU (dotted: bare loop)", loc="left", fontsize=9, color=_INK)
        axes.set_xlim(0, 1.15 * max(1e6 / row.cpu for row in members))
        axes.tick_params(colors=_INK, length=0, labelbottom=False)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.spines["left"].set_color(_OTHERS)
    figure.tight_layout()
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
