"""The display of running commands: what is written to a terminal of a size."""

import io
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from gnsq_like.cli.screen import Layout, LiveView

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
