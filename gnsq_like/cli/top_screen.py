"""The screen of ``gnsq-like top``: textual's tables, filled by a thread that asks the cluster again and again.

The screen never waits for a daemon. What the thread brings comes as a message; keys only change what is shown of it,
but for "clients", which are asked for while they are shown.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static, Tab, Tabs

from gnsq_like.cli.top_figures import KINDS, Column, Kind, Row, Tables, in_order
from gnsq_like.errors import NotRunning

#: Rows of a table at most: more cannot be read, and would take long to draw over a slow line.
MOST_ROWS = 500
#: Cells are this far from each other.
_PADDING = 1
#: Characters of a text in a table.
_LONGEST = 48
_ALARMING = ("stuck", "no answer", "NOK")


class Takes(Protocol):
    """What brings the figures: top_poll.Poll."""

    def take(self, *, with_clients: bool = False) -> Tables: ...


class Taken(Message):
    """The thread has new figures."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables


@dataclass
class Look:
    """How a table is looked at."""

    kind: Kind
    sorted_by: str
    descending: bool
    words: str = ""

    @property
    def column(self) -> Column:
        return next(each for each in self.kind.columns if each.name == self.sorted_by)

    def rows(self, tables: Tables) -> list[Row]:
        """Its rows, filtered and sorted."""
        found = [row for row in tables.rows[self.kind.name] if row.matches(self.words)]
        return in_order(found, self.column, descending=self.descending)


class TopApp(App[int]):
    """The screen.

    :param poll: asked in a thread
    :param interval: seconds between two looks
    :param view: one of KINDS, which is shown first
    :param words: the filter of that table
    :param first: figures to begin with
    """

    CSS = """
    #summary { height: 1; padding: 0 1; }
    #warnings { height: auto; max-height: 3; padding: 0 1; color: $error; }
    #warnings.empty { display: none; }
    #filter { height: 1; border: none; display: none; padding: 0 1; }
    #filter.shown { display: block; }
    #rows { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view('{name}')", name, show=False) for number, name in enumerate(KINDS, 1)),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort back", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "clear_filter", "all rows", show=False),
        Binding("p", "pause", "pause"),
        Binding("q,ctrl+c", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, poll: Takes, interval: float, *, view: str = "topics", words: str = "", first: Tables | None = None
    ) -> None:
        super().__init__()
        self.title = "gnsq-like top"
        self._interval = interval
        self._poll = poll
        self._tables = first or Tables({name: [] for name in KINDS})
        self._first_view = view
        self._looks = {
            name: Look(kind, kind.sorted_by, descending=_kind_of(kind, kind.sorted_by) != "text")
            for name, kind in KINDS.items()
        }
        self._looks[view].words = words
        self.look = self._looks[view]
        self.is_paused = False
        #: Written by the screen, read by the thread: whether clients are wanted, to look at once, and to end.
        self._with_clients = view == "clients"
        self._hurry = threading.Event()
        self._is_over = False

    # -- life ------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static(id="summary", markup=False)
        yield Tabs(*(Tab(f"{number} {name}", id=name) for number, name in enumerate(KINDS, 1)), active=self._first_view)
        yield Input(placeholder="words that a row must have", id="filter", compact=True)
        with Vertical():
            yield DataTable(id="rows", cursor_type="row", cell_padding=_PADDING, zebra_stripes=False)
        yield Static(id="warnings", classes="empty", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 0)
        self.table.focus()
        self._show()
        threading.Thread(target=self._watch, name="gnsq_like top", daemon=True).start()

    def on_unmount(self) -> None:
        self._is_over = True
        self._hurry.set()

    def _watch(self) -> None:
        """In the thread: look again and again."""
        while not self._is_over:
            self._hurry.clear()
            try:
                tables = self._poll.take(with_clients=self._with_clients)
            except NotRunning:
                return  # closed meanwhile
            if not self._is_over:
                self.post_message(Taken(tables))
            self._hurry.wait(self._interval)

    def on_taken(self, message: Taken) -> None:
        if not self.is_paused:
            self._tables = message.tables
            self._show()

    # -- what is shown ---------------------------------------------------------------------------------

    @property
    def table(self) -> DataTable[Text]:
        return self.query_one("#rows", DataTable)

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def _show(self) -> None:
        """Draw the figures; the cursor stays on its row."""
        if not self.query("#rows"):
            return  # the screen is not there yet, or no longer
        table, look = self.table, self.look
        rows = look.rows(self._tables)
        shown = rows[:MOST_ROWS]
        columns = fitting(look.kind, shown, self.size.width)
        at = self._row_key()
        top = table.scroll_y
        table.clear(columns=True)
        for column in columns:
            table.add_column(self._heading(column), key=column.name)
        for row in shown:
            table.add_row(*(_cell(row, column) for column in columns), key=row.key)
        keys = [row.key for row in shown]
        if at in keys:
            table.move_cursor(row=keys.index(at), scroll=False)
            table.scroll_to(y=top, animate=False, force=True)
        self._show_lines(len(rows), len(shown))

    def _show_lines(self, found: int, shown: int) -> None:
        parts = [f"filter: {self.look.words}"] if self.look.words else []
        parts.append(self._tables.summary)
        if shown < found:
            parts.insert(0, f"{shown} of {found} rows")
        if self.is_paused:
            parts.insert(0, "paused")
        self.query_one("#summary", Static).update(" | ".join(filter(None, parts)))
        warnings = self.query_one("#warnings", Static)
        warnings.update("\n".join(" ".join(each.split()) for each in self._tables.warnings[:3]))
        warnings.set_class(not self._tables.warnings, "empty")

    def _heading(self, column: Column) -> Text:
        mark = ("▼" if self.look.descending else "▲") if column.name == self.look.sorted_by else ""
        return Text(column.name + mark, justify="left" if column.kind in ("text", "spark") else "right")

    def _row_key(self) -> str | None:
        table = self.table
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    # -- keys ------------------------------------------------------------------------------------------

    def action_view(self, name: str) -> None:
        """Show a table."""
        self.query_one(Tabs).active = name

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        self.look = self._looks[event.tab.id or "topics"]
        self._with_clients = self.look.kind.name == "clients"
        if self._with_clients:
            self._hurry.set()
        self._show()

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or the one before."""
        names = [each.name for each in self.look.kind.columns if each.kind != "spark"]
        self._sort_by(names[(names.index(self.look.sorted_by) + step) % len(names)])

    def _sort_by(self, name: str) -> None:
        self.look.sorted_by = name
        self.look.descending = _kind_of(self.look.kind, name) != "text"
        self._show()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        name = str(event.column_key.value)
        if name == self.look.sorted_by:
            self.action_reverse()
        elif _kind_of(self.look.kind, name) != "spark":
            self._sort_by(name)

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.look.descending = not self.look.descending
        self._show()

    def action_pause(self) -> None:
        """Show no new figures, or go on."""
        self.is_paused = not self.is_paused
        self._hurry.set()
        self._show()

    def action_filter(self) -> None:
        """Ask for the filter."""
        line = self.query_one("#filter", Input)
        line.value = self.look.words
        line.add_class("shown")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.has_class("shown"):
            self.look.words = event.value
            self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._hide_filter()

    def action_clear_filter(self) -> None:
        """Show all rows."""
        self._hide_filter()
        self.look.words = ""
        self._show()

    def _hide_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self.table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter: from a topic to its channels, from a channel to its clients, from a node to its clients."""
        following = {"topics": "channels", "channels": "clients", "nodes": "clients"}.get(self.look.kind.name)
        if following is not None:
            suffix = "/" if following == "channels" else ""
            self._looks[following].words = f"{event.row_key.value}{suffix}"
            self.action_view(following)


def _kind_of(kind: Kind, name: str) -> str:
    return next(each.kind for each in kind.columns if each.name == name)


def _cell(row: Row, column: Column) -> Text:
    text = row.text(column)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    style = "bold red" if column.name == "STATE" and any(word in text for word in _ALARMING) else ""
    return Text(text, style, justify="left" if column.kind in ("text", "spark") else "right", no_wrap=True)


def fitting(kind: Kind, rows: Iterable[Row], width: int) -> list[Column]:
    """The columns that fit into a terminal of this width."""
    shown = list(kind.columns)
    # One more for the mark of the column that is sorted by.
    widths = {each.name: len(each.name) + 1 for each in shown}
    for row in rows:
        for each in shown:
            widths[each.name] = max(widths[each.name], min(_LONGEST, len(row.text(each))))
    for name in kind.dispensable:
        if sum(widths[each.name] + 2 * _PADDING for each in shown) <= width:
            break
        shown = [each for each in shown if each.name != name]
    return shown
