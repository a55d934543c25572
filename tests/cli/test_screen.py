"""The display of running commands: what is written to a terminal of a size."""

import io
from dataclasses import dataclass

import pytest
from rich.console import Console
from rich.text import Text

from gnsq_like.cli.demo_run import DemoLayout
from gnsq_like.cli.screen import Layout, LineView, LiveView, make_view

CLEARED = "\x1b[2J"


@dataclass
class Moment:
    seconds: float


class OneLine(Layout[Moment]):
    def line(self, snapshot: Moment) -> str:
        return ""

    def table(self, snapshot: Moment, width: int, height: int) -> Text:
        return Text(f"at {snapshot.seconds:.0f}, {width} columns")


def test_a_terminal_that_becomes_narrower_is_cleared() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, height=20)
    with LiveView(OneLine(), console) as view:
        view.say("said before")
        for second, width in enumerate([100, 100, 120, 60, 60]):
            console.width = width
            view.update(Moment(second))
    before, after = written.getvalue().split(CLEARED)
    assert "at 2, 120 columns" in before
    assert before.count("said before") == after.count("said before") == 1
    assert "at 3, 60 columns" in after
    assert "at 4, 60 columns" in after


@pytest.mark.parametrize(
    ("columns", "lines", "term", "kind"),
    [
        (80, 24, "xterm", LiveView),
        (40, 24, "xterm", LineView),
        (80, 5, "xterm", LineView),
        (80, 24, "dumb", LineView),
    ],
)
def test_a_small_or_dumb_terminal_shows_lines(
    columns: int, lines: int, term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": 1, "COLUMNS": columns, "LINES": lines, "TERM": term}.items():
        monkeypatch.setenv(name, str(value))
    assert type(make_view(DemoLayout())) is kind
