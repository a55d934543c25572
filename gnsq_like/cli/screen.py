"""The display of a running command: a table that is redrawn on a terminal, plain lines elsewhere, or nothing.

Each command has a Layout for its snapshots (``demo_run``, ``pipeline_screen``). Nothing here runs by itself: the
command calls :meth:`View.update`.
"""

from __future__ import annotations

import textwrap
import time
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import click
from rich.console import Console, RenderableType
from rich.live import Live

#: Lines that are shown again after the screen had to be cleared.
_LINES_KEPT = 20


class Timed(Protocol):
    """A snapshot of a run."""

    @property
    def seconds(self) -> float:
        """Since the start."""


S = TypeVar("S", bound=Timed)


class Layout(ABC, Generic[S]):
    """The look of a command's snapshots."""

    #: Columns and lines of the smallest terminal that the table is drawn on.
    least_size = (0, 0)
    #: Seconds between two plain lines.
    line_interval = 2.0
    #: Whether the table goes away at the end.
    is_transient = False

    @abstractmethod
    def line(self, snapshot: S) -> str:
        """The snapshot as a line, without the time; empty for no line."""

    @abstractmethod
    def table(self, snapshot: S, width: int, height: int) -> RenderableType:
        """For a terminal of this size."""


class View(Generic[S]):
    """Shows nothing; the base of the other views, and the view for ``--quiet``."""

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def say_to_copy(self, line: str) -> None:
        """Show a line that stays, and that is never broken in two."""

    def update(self, snapshot: S) -> None:
        """Show the run as it is now."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The updates are over."""


class LineView(View[S]):
    """A line every few seconds if something has changed: for files, pipes, and terminals too small for the table.

    :param width: columns of the terminal; None if stdout is not a terminal, where lines may have any length
    """

    def __init__(self, layout: Layout[S], width: int | None = None) -> None:
        self._layout = layout
        self._width = width
        #: When the next line is due (monotonic), and the text of the last one.
        self._due = 0.0
        self._said = ""
        #: A line that was not due yet.
        self._late = ""

    def say(self, line: str) -> None:
        self.say_to_copy(line if self._width is None else textwrap.fill(line, self._width, subsequent_indent="    "))

    def say_to_copy(self, line: str) -> None:
        click.echo(line)

    def update(self, snapshot: S) -> None:
        text = self._layout.line(snapshot)
        self._late = ""
        if not text or text == self._said:
            return
        line = f"{snapshot.seconds:6.1f} s: {text}"
        if time.monotonic() < self._due:
            self._late = line
            return
        self._due = time.monotonic() + self._layout.line_interval
        self._said = text
        self.say(line)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._late and exc is None:
            self.say(self._late)


class LiveView(View[S]):
    """A table that is redrawn in its place, from the first update on."""

    def __init__(self, layout: Layout[S], console: Console) -> None:
        self._layout = layout
        self._console = console
        self._live = self._new_live()
        #: Columns at the last update.
        self._width = console.width
        #: The last lines shown by ``say``, and whether the terminal may wrap them.
        self._said: deque[tuple[str, bool]] = deque(maxlen=_LINES_KEPT)

    def _new_live(self) -> Live:
        # Its own refreshing would be a thread, which a busy hub starves; update() comes often enough.
        return Live(console=self._console, auto_refresh=False, transient=self._layout.is_transient)

    def say(self, line: str) -> None:
        self._say(line, False)

    def say_to_copy(self, line: str) -> None:
        self._say(line, True)

    def _say(self, line: str, soft_wrap: bool) -> None:
        self._said.append((line, soft_wrap))
        self._console.print(line, highlight=False, markup=False, soft_wrap=soft_wrap)

    def update(self, snapshot: S) -> None:
        width = self._console.width
        if width < self._width:
            self._clear()
        self._width = width
        self._live.start()  # nothing if it is started
        self._live.update(self._layout.table(snapshot, width, self._console.height), refresh=True)

    def _clear(self) -> None:
        """Clear the screen: some terminals wrap the lines of the table when they become narrower, so fragments would
        stay."""
        self._live.transient = True
        self._live.stop()
        self._live = self._new_live()
        self._console.clear()
        for line, soft_wrap in self._said:
            self._console.print(line, highlight=False, markup=False, soft_wrap=soft_wrap)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def make_view(layout: Layout[S], *, quiet: bool = False) -> View[S]:
    """The view that suits stdout."""
    if quiet:
        return View()
    console = Console()
    if not console.is_terminal:
        return LineView(layout)
    columns, lines = layout.least_size
    if console.is_dumb_terminal or console.width < columns or console.height < lines:
        return LineView(layout, console.width)
    return LiveView(layout, console)
