"""The charts of simulate.py, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _fleet import Setup
from _report import svg_pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2f6fdb", "#d9822b", "#3c8d5a", "#8a4fbf")
_INK, _LINE = "#4b5563", "#c4cad3"


def draw_traffic(runs: Sequence[Mapping[str, Any]], setup: Setup, path: Path) -> None:
    """The share of the window in use, and RDY commands, over time."""
    figure, (shares, commands) = _panels()
    for run, colour in zip(runs, _COLOURS, strict=False):
        samples = run["samples"]
        label = f"max_in_flight {run['options']['max_in_flight']}"
        if (idle := run["options"]["low_rdy_idle_timeout"]) != 10:
            label += f", low_rdy_idle_timeout {idle:g}"
        shares.plot([each[0] for each in samples], [100 * each[1] for each in samples], color=colour, label=label)
        rates = [
            (later[0], (later[2] - first[2]) / (later[0] - first[0]) / setup.readers)
            for first, later in zip(samples, samples[4:], strict=False)
        ]
        commands.plot([at for at, _ in rates], [rate for _, rate in rates], color=colour)
    _finish(shares, "Share of all max_in_flight in use, %", runs[0]["began"])
    _finish(commands, "RDY commands a second, each Reader", runs[0]["began"])
    _save(figure, shares, commands, path)


def draw_discovery(runs: Sequence[Mapping[str, Any]], setup: Setup, path: Path) -> None:
    """Requests to all nsqlookupds, and connections tried, over time."""
    figure, (lookups, dials) = _panels()
    for run, colour in zip(runs, _COLOURS, strict=False):
        options = run["options"]
        label = f"every {options['lookupd_poll_interval']:g} s, jitter {options['lookupd_poll_jitter']:g}"
        seconds = range(len(run["lookups"]))
        lookups.plot(seconds, run["lookups"], color=colour, label=label, linewidth=0.8)
        dials.plot(seconds, run["dials"], color=colour, linewidth=0.8)
    for axes in (lookups, dials):
        axes.set_yscale("symlog", linthresh=10)
    _finish(lookups, f"Requests a second to {setup.nsqlookupds} nsqlookupds", runs[0]["began"])
    _finish(dials, f"Connections tried a second, to {setup.nsqds} nsqds", runs[0]["began"])
    _save(figure, lookups, dials, path)


def _panels() -> tuple[Any, tuple[Axes, Axes]]:
    figure, panels = svg_pyplot("scale").subplots(2, 1, figsize=(8.5, 6), sharex=True)
    return figure, (panels[0], panels[1])


def _finish(axes: Axes, title: str, began: Mapping[str, float]) -> None:
    axes.set_title(title, loc="left", fontsize=9, color=_INK)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.tick_params(colors=_INK, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_LINE)
    axes.grid(axis="y", color=_LINE, linewidth=0.4)
    for name, at in began.items():
        axes.axvline(at, color=_INK, linewidth=0.6, linestyle=":")
        axes.annotate(
            name.replace(" restart", "\nrestart").replace(" are lost", "\nare lost"),
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=_INK,
        )


def _save(figure: Any, first: Axes, second: Axes, path: Path) -> None:
    second.set_xlabel("seconds", color=_INK)
    figure.tight_layout()
    figure.legend(*first.get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=8)
    figure.subplots_adjust(bottom=0.14)
    figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})
