"""Draws docs/_static/demo.svg: runs the demonstration, and shows the end of it as a terminal does.

Run it in a checkout: python benchmarks/picture.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from gnsq_like.cli.demo_run import Demo, DemoLayout, DemoPlan, DemoSnapshot
from gnsq_like.cli.screen import View

WIDTH = 100
PICTURE = Path(__file__).resolve().parents[1] / "docs/_static/demo.svg"


class Last(View[DemoSnapshot]):
    """Keeps the last snapshot."""

    snapshot: DemoSnapshot | None = None

    def update(self, snapshot: DemoSnapshot) -> None:
        self.snapshot = snapshot


def main() -> None:
    view = Last()
    plan = DemoPlan(messages=100_000, nsqds=2, readers=2, body_bytes=100, fail_every=1000, work=0.02)
    verdict = Demo(plan, view).run()
    assert view.snapshot is not None
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print("$ make demo")
    console.print(DemoLayout().table(view.snapshot, WIDTH, 24))
    console.print(str(verdict), highlight=False)
    svg = console.export_svg(title="make demo", unique_id="demo")
    # Without the fonts that rich names: the site works without the net.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
