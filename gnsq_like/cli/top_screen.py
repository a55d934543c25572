"""The screen of ``gnsq-like top``.

``Top`` is what is shown: figures, keys and clicks come in, lines go out, without I/O. ``show`` is the terminal: it
draws when something has come, and never waits for a daemon, because a thread asks them again and again. Keys only
change what is shown of the figures, but for "clients", which are asked for while they are shown.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gnsq_like.cli.changes import summary
from gnsq_like.cli.tables import Grid
from gnsq_like.cli.top_figures import KINDS, SPARK_LENGTH, Kind, Row, Tables, in_order
from gnsq_like.errors import NotRunning, NSQError
from gnsq_like.tools.operations import DONE, Outcome

#: Rows that are looked at for the widths of columns.
_MEASURED = 500
#: Characters of a text in a table, and warnings at the bottom.
_LONGEST, _MOST_WARNINGS = 48, 3
_HELP = "1-4 table  s sort  / filter  Enter open  p pause  e empty  t tail  q quit"
#: Enter: from a topic to its channels, from a channel or a node to its clients.
_FOLLOWING = {"topics": "channels", "channels": "clients", "nodes": "clients"}


@dataclass(frozen=True)
class Action:
    """What a key does to a topic or channel, once the user has said yes.

    :ivar name: "pause", "unpause", "empty" or "tail"
    """

    name: str
    topic: str
    channel: str | None = None

    @property
    def what(self) -> str:
        """As "channel clicks/archive"."""
        return f"topic {self.topic}" if self.channel is None else f"channel {self.topic}/{self.channel}"

    @property
    def question(self) -> str:
        """What the user is asked."""
        if self.name == "tail":
            return f"Show the messages of topic {self.topic} as they come, until Ctrl-C?"
        if self.name == "empty":
            rest = " that no channel has yet" if self.channel is None else ", also those in flight"
            return f"Drop all messages of {self.what}{rest}?"
        return f"{self.name.capitalize()} {self.what}?"


@dataclass
class Look:
    """How a table is looked at."""

    kind: Kind
    sorted_by: str
    descending: bool
    words: str = ""
    #: The key of the row with the cursor, and where that was and what the first row was, when it was drawn.
    key: str = ""
    at: int = 0
    first: int = 0

    def rows(self, tables: Tables) -> list[Row]:
        """Its rows, filtered and sorted."""
        found = [row for row in tables.rows[self.kind.name] if row.matches(self.words)]
        return in_order(found, self.kind.column(self.sorted_by), descending=self.descending)

    def sort_by(self, name: str) -> None:
        """Sort by a column, the other way round if it is already."""
        kind = self.kind.column(name).kind
        self.descending = not self.descending if name == self.sorted_by else kind != "text"
        self.sorted_by = name


class Top:
    """What is shown.

    :param view: one of KINDS, which is shown first
    :param words: the filter of that table
    :param first: figures to begin with
    """

    def __init__(self, *, view: str = "topics", words: str = "", first: Tables | None = None) -> None:
        self._tables = first or Tables({name: [] for name in KINDS})
        self._looks = {
            name: Look(kind, kind.sorted_by, kind.column(kind.sorted_by).kind != "text") for name, kind in KINDS.items()
        }
        self.look = self._looks[view]
        self.look.words = words
        self.is_held = False
        self.is_over = False
        #: What the user is asked, and what the user wants done, which whoever shows this takes out.
        self._asked: Action | None = None
        self.wanted: deque[Action] = deque()
        #: What came of it, in the place of the help.
        self.news = Text()
        #: Whether keys go into the filter.
        self._edits = False
        #: As drawn last: the rows, how many fit, the line of the headings, and the columns.
        self._rows: list[Row] = []
        self._page = 1
        self._heading_line = 0
        self._grid = grid_of(self.look.kind, (), 0)
        self._keys: Mapping[str, Callable[[], object]] = {
            **{str(number): partial(self._view, name) for number, name in enumerate(KINDS, 1)},
            "s": lambda: self._sort(1),
            "S": lambda: self._sort(-1),
            "r": lambda: self.look.sort_by(self.look.sorted_by),
            "/": self._begin_to_edit,
            "escape": lambda: self._filter(""),
            " ": self._hold,
            "p": lambda: self._ask("pause"),
            "e": lambda: self._ask("empty"),
            "t": lambda: self._ask("tail"),
            "q": self._quit,
            "enter": self._follow,
            "up": lambda: self._move(-1),
            "down": lambda: self._move(1),
            "pageup": lambda: self._move(-self._page),
            "pagedown": lambda: self._move(self._page),
            "home": lambda: self._move(-len(self._rows)),
            "end": lambda: self._move(len(self._rows)),
        }

    @property
    def with_clients(self) -> bool:
        """Whether clients are wanted."""
        return self.look.kind.name == "clients"

    def take(self, tables: Tables) -> None:
        """New figures have come."""
        if not self.is_held:
            self._tables = tables

    # -- keys ----------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """A key: a character, or a name such as "enter"."""
        self.news = Text()
        if self._asked is not None:
            if key in "yY":
                self.wanted.append(self._asked)
            self._asked = None
        elif self._edits:
            self._edit(key)
        elif action := self._keys.get(key):
            action()

    def _edit(self, key: str) -> None:
        self._edits = key not in ("enter", "escape")
        if key == "escape":
            self._filter("")
        elif key == "backspace":
            self._filter(self.look.words[:-1])
        elif len(key) == 1:
            self._filter(self.look.words + key)

    def _begin_to_edit(self) -> None:
        self._edits = True

    def _filter(self, words: str) -> None:
        self.look.words = words

    def _view(self, name: str) -> None:
        self.look = self._looks[name]

    def _sort(self, step: int) -> None:
        names = [each.name for each in self.look.kind.columns if each.kind != "spark"]
        self.look.sort_by(names[(names.index(self.look.sorted_by) + step) % len(names)])

    def _hold(self) -> None:
        self.is_held = not self.is_held

    def _ask(self, name: str) -> None:
        """Ask whether to do this to the topic or channel under the cursor."""
        if self.look.kind.name not in ("topics", "channels"):
            self.news = Text("this is for topics (1) and channels (2)", "yellow")
        elif self._rows:
            row = self._rows[self.look.at]
            topic, _, channel = row.key.partition("/")
            states = str(row.values["STATE"]).split(", ")
            is_paused = ("paused" if channel else "topic paused") in states
            self._asked = Action("unpause" if name == "pause" and is_paused else name, topic, channel or None)

    def _quit(self) -> None:
        self.is_over = True

    def _move(self, step: int) -> None:
        if self._rows:
            self.look.at = min(max(0, self.look.at + step), len(self._rows) - 1)
            self.look.key = self._rows[self.look.at].key

    def _follow(self) -> None:
        following = _FOLLOWING.get(self.look.kind.name)
        if following is not None and self._rows:
            self._looks[following].words = self.look.key + ("/" if following == "channels" else "")
            self._view(following)

    def click(self, column: int, line: int) -> None:
        """A click, counted from 0: sorts by a heading, or chooses a row."""
        if line == self._heading_line:
            under = self.look.kind.column(self._grid.column_at(column))
            if under.kind != "spark":
                self.look.sort_by(under.name)
        elif 0 < line - self._heading_line <= min(self._page, len(self._rows) - self.look.first):
            self._move(self.look.first + line - self._heading_line - 1 - self.look.at)

    # -- lines ---------------------------------------------------------------------------------------

    def lines(self, width: int, height: int) -> list[Text]:
        """The screen. The cursor stays on its row, wherever that is sorted to."""
        look = self.look
        self._rows = rows = look.rows(self._tables)
        warnings = [Text(" ".join(each.split()), "red") for each in self._tables.warnings[:_MOST_WARNINGS]]
        head = [self._summary(), self._tabs()]
        self._heading_line = len(head)
        self._page = max(1, height - len(head) - 2 - len(warnings))
        self._find_cursor()
        self._grid = grid = grid_of(look.kind, rows[:_MEASURED], width)
        page = rows[look.first : look.first + self._page]
        heading = grid.heading({look.sorted_by: "▼" if look.descending else "▲"})
        body = [heading, *(grid.line(look.kind.texts(row), "reverse" if row.key == look.key else "") for row in page)]
        body += [Text()] * (self._page - len(page))
        question = Text(f"{self._asked.question} y/n", "bold yellow") if self._asked else Text()
        lines = [*head, *body, *warnings, question or self.news or Text(_HELP, "dim")]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return lines

    def _find_cursor(self) -> None:
        look = self.look
        keys = [row.key for row in self._rows]
        look.at = keys.index(look.key) if look.key in keys else min(look.at, max(0, len(keys) - 1))
        look.key = keys[look.at] if keys else ""
        look.first = min(max(look.first, look.at - self._page + 1), look.at, max(0, len(keys) - self._page))

    def _summary(self) -> Text:
        words = self.look.words
        parts = ["held"] if self.is_held else []
        parts += [f"filter: {words}{'_' if self._edits else ''}"] if words or self._edits else []
        return Text(" | ".join(filter(None, [*parts, self._tables.summary])))

    def _tabs(self) -> Text:
        text = Text()
        for number, name in enumerate(KINDS, 1):
            text.append(f" {number} {name} ", "reverse" if name == self.look.kind.name else "").append(" ")
        return text


def grid_of(kind: Kind, rows: Iterable[Row], width: int) -> Grid:
    """The columns of a kind of rows.

    :param rows: those that are looked at for the widths
    """
    names = [each.name for each in kind.columns]
    return Grid(
        names,
        map(kind.texts, rows),
        width=width,
        dispensable=kind.dispensable,
        right=[each.name for each in kind.columns if each.kind not in ("text", "spark")],
        # One more for the mark of the column that is sorted by; a small graph has its place from the beginning.
        least={each.name: SPARK_LENGTH if each.kind == "spark" else len(each.name) + 1 for each in kind.columns},
        longest=_LONGEST,
    )


# -- the terminal -----------------------------------------------------------------------------------

_CLICKS_ON, _CLICKS_OFF = "\x1b[?1000h\x1b[?1006h", "\x1b[?1006l\x1b[?1000l"
_SEQUENCE = re.compile(r"\x1b(?:\[(?P<click><\d+;\d+;\d+[Mm])|[\[O](?P<code>[\d;]*[A-Za-z~]))|(?P<key>.)", re.DOTALL)
_CODES = {"A": "up", "B": "down", "5~": "pageup", "6~": "pagedown", "H": "home", "F": "end", "1~": "home", "4~": "end"}
_NAMES = {"\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\b": "backspace"}
_WHEEL = {64: "up", 65: "down"}


class Takes(Protocol):
    """What brings the figures, and carries out changes: top_figures.Poll."""

    def take(self, *, with_clients: bool = False) -> Tables: ...

    def change(self, action: str, topic: str, channel: str | None) -> Outcome: ...


def feed(top: Top, typed: str) -> None:
    """Pass on what a terminal has sent: keys and clicks."""
    for found in _SEQUENCE.finditer(typed):
        if found["click"]:
            button, column, line = map(int, found["click"][1:-1].split(";"))
            if button in _WHEEL:
                top.press(_WHEEL[button])
            elif button == 0 and found["click"].endswith("M"):
                top.click(column - 1, line - 1)
        elif found["code"]:
            top.press(_CODES.get(found["code"], ""))
        else:
            top.press(_NAMES.get(found["key"], found["key"]))


def show(top: Top, poll: Takes, interval: float, tail: Callable[[str], object]) -> None:
    """Show it on this terminal until ``q``, Ctrl-C, SIGTERM, or the terminal's end.

    :param interval: seconds between two looks at the cluster
    :param tail: shows the messages of a topic on the terminal, until Ctrl-C
    """
    wanted = threading.Event()
    taken: deque[Tables] = deque()
    changes: deque[Action] = deque()

    def watch() -> None:
        """In a thread: look again and again."""
        while not top.is_over:
            wanted.clear()
            while changes:
                top.news = _carry_out(changes.popleft(), poll)
            with suppress(NotRunning):  # closed meanwhile
                taken.append(poll.take(with_clients=top.with_clients))
            wake()
            wanted.wait(interval)

    with ExitStack() as stack:
        signals, woken, wake = stack.enter_context(_noted_signals())
        terminal = stack.enter_context(_Terminal())
        threading.Thread(target=watch, name="gnsq_like top", daemon=True).start()
        while not top.is_over:
            while taken:
                top.take(taken.popleft())
            terminal.draw(top)
            ready, _, _ = select.select([sys.stdin, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
            before = (top.with_clients, top.is_held)
            if sys.stdin in ready:
                feed(top, typed) if (typed := terminal.read()) else top.press("q")
            while top.wanted:
                action = top.wanted.popleft()
                if action.name == "tail":
                    with terminal.left(signals):
                        tail(action.topic)
                else:
                    top.news = Text("...")
                    changes.append(action)
            if changes or before != (top.with_clients, top.is_held):
                wanted.set()  # look at once
            while signals:
                _signalled(signals.popleft(), top, terminal)
    wanted.set()


def _carry_out(action: Action, poll: Takes) -> Text:
    """Do it; returns what came of it."""
    try:
        outcome = poll.change(action.name, action.topic, action.channel)
    except NSQError as exc:
        return Text(" ".join(str(exc).split()), "bold red")
    news = Text(summary(outcome, f"{action.what}: {DONE[action.name]}"))
    for error in outcome.failures:
        news.append(f"  {' '.join(str(error).split())}", "bold red")
    return news


def _signalled(number: int, top: Top, terminal: _Terminal) -> None:
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        top.is_over = True
    elif number == signal.SIGTSTP:
        # Ctrl-Z: the shell gets its terminal back.
        terminal.leave()
        handler = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, handler)
    if number in (signal.SIGCONT, signal.SIGTSTP):
        terminal.enter()  # whatever became of it meanwhile


@contextmanager
def _noted_signals() -> Iterator[tuple[deque[int], int, Callable[[], object]]]:
    """Signals that have come; a descriptor that is readable then; and a function that makes it so, for any thread."""
    noted: deque[int] = deque()
    woken, wakeup = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakeup, False)

    def wake() -> None:
        with suppress(OSError):  # full, or closed at the end
            os.write(wakeup, b"\0")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
    before = {number: signal.signal(number, lambda caught, _: noted.append(caught)) for number in numbers}
    before_wakeup = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        yield noted, woken, wake
    finally:
        signal.set_wakeup_fd(before_wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        # Not closed: the thread may write yet, and the process is about to end.


class _Terminal:
    """This terminal, with a screen of ours; a context manager."""

    def __init__(self) -> None:
        self._console = Console()
        self._modes = termios.tcgetattr(sys.stdin)
        self._live: Live | None = None

    def enter(self) -> None:
        """Have a screen of our own, and keys as they are pressed; again is fine."""
        if self._live is not None:
            self._live.stop()
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # what has been typed already counts
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stderr=False)
        self._live.start()
        self._write(_CLICKS_ON)

    def leave(self) -> None:
        """Give the terminal back as it was; twice is fine."""
        if self._live is None:
            return
        with suppress(OSError, termios.error):  # it may be gone
            self._write(_CLICKS_OFF)
            self._live.stop()
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
        self._live = None

    @contextmanager
    def left(self, signals: deque[int]) -> Iterator[None]:
        """Within this the terminal is as it was, for another program: signals that it sends are not for us."""
        self.leave()
        before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # also of the other program: we wait for its end
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, before)
            while signal.SIGINT in signals:
                signals.remove(signal.SIGINT)
            self.enter()

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()

    def read(self) -> str:
        """What has been typed; empty at the end of the terminal."""
        try:
            return os.read(sys.stdin.fileno(), 4096).decode(errors="replace")
        except OSError:
            return ""

    def draw(self, top: Top) -> None:
        """Draw the screen anew."""
        assert self._live is not None
        self._live.update(Group(*top.lines(*self._console.size)), refresh=True)

    def __enter__(self) -> _Terminal:
        self.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()
