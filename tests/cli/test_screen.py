"""The display of running commands: what is written to a terminal of a size."""

import io
from dataclasses import dataclass, replace

import pytest
from rich.console import Console
from rich.text import Text

from gnsq_like.cli.cluster_screen import ClusterLayout, ClusterSnapshot, LookupdRow, NsqdRow
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


FEW = NsqdRow("nsqd 10", "127.0.0.1:45123", "127.0.0.1:45124", 10)
MANY = replace(
    FEW,
    topics=12,
    channels=34,
    depth=1_234_567,
    in_flight=200,
    deferred=1000,
    clients=12,
    published_per_second=123_456.0,
    finished_per_second=12_345.0,
)


@pytest.mark.parametrize("row", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("width", [200, 130, 120, 119, 100, 90, 80, 60, 40])
def test_no_cell_of_the_clusters_table_is_cut(width: int, row: NsqdRow) -> None:
    lookupds = [LookupdRow("nsqlookupd 1", "127.0.0.1:54160", "127.0.0.1:54161", 2, 12)]
    snapshot = ClusterSnapshot(12.0, [row, row], lookupds, 12, 34)
    console = Console(file=io.StringIO(), width=width, height=30)
    with console.capture() as capture:
        console.print(ClusterLayout().table(snapshot, width, 30))
    heading, *rows = capture.get().splitlines()
    assert "…" not in capture.get()
    assert heading.rstrip().endswith("  done/s" if width == 200 else " done/s")
    assert [line.split()[-1] for line in rows[:2]] == [f"{row.finished_per_second:,.0f}"] * 2
    assert all(len(line) <= width for line in [heading, *rows])
    assert ("HTTP" in heading) is (width >= 119)
