"""What ``gnsq-like top`` shows, and what keys and clicks do with it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gnsq_like.cli.top_figures import KINDS, Poll, Row, Tables
from gnsq_like.cli.top_screen import Action, Top, feed, grid_of
from gnsq_like.errors import NotRunning
from gnsq_like.testing import wait_until
from gnsq_like.tools.daemons import Daemons
from tests.support.commands import PATIENCE
from tests.support.daemons import Running, running_nsqd
from tests.support.tools import fill

OPTIONS = {"timeout": PATIENCE, "connect_timeout": PATIENCE, "verify": True, "cert": None}


def row(kind: str, key: str, depth: float, **texts: str) -> Row:
    """A row of zeros, but for its depth."""
    values = {each.name: "" if each.kind == "text" else 0.0 for each in KINDS[kind].columns}
    return Row(key, {**values, KINDS[kind].columns[0].name: key, "DEPTH": depth, **texts}, (depth,))


def tables(topics: int = 3) -> Tables:
    none: dict[str, list[Row]] = {name: [] for name in KINDS}
    rows = none | {
        "topics": [row("topics", f"topic{number:03d}", float(number)) for number in range(topics)],
        "channels": [row("channels", key, 1.0) for key in ("topic001/a", "topic001/b", "topic002/a")],
        "clients": [row("clients", "n topic002/a 1", 0.0, CHANNEL="topic002/a")],
    }
    return Tables(rows, "a summary")


def shown(top: Top, height: int = 20, width: int = 120) -> list[str]:
    return [line.plain.rstrip() for line in top.lines(width, height)]


def names(top: Top, height: int = 20) -> list[str]:
    """The first cells of the rows that are drawn."""
    return [line.split()[0] for line in shown(top, height)[3:-1] if line]


def test_a_screen() -> None:
    lines = shown(Top(first=tables()), 8)
    assert lines[0] == "a summary"
    assert lines[1].split() == ["1", "topics", "2", "channels", "3", "clients", "4", "nodes"]
    assert lines[2].split()[:2] == ["TOPIC", "DEPTH▼"]
    assert [line.split()[:2] for line in lines[3:6]] == [["topic002", "2"], ["topic001", "1"], ["topic000", "0"]]
    assert lines[-1].startswith("1-4 table")
    assert len(lines) == 8


def test_sorting() -> None:
    top = Top(first=tables())
    assert names(top) == ["topic002", "topic001", "topic000"]
    top.press("r")
    assert names(top) == ["topic000", "topic001", "topic002"]
    top.press("s")  # all equal: in the order of their keys
    assert shown(top)[2].split()[3:5] == ["~", "IN/S▼"]
    top.press("S")
    top.press("S")
    assert shown(top)[2].startswith("TOPIC▲")
    assert names(top) == ["topic000", "topic001", "topic002"]


def test_a_click_on_a_heading_sorts_and_one_on_a_row_chooses() -> None:
    top = Top(first=tables())
    heading = shown(top)[2]
    feed(top, "\x1b[<0;1;3M\x1b[<0;1;3m")
    assert names(top) == ["topic000", "topic001", "topic002"]
    feed(top, f"\x1b[<0;{heading.index('DEPTH') + 2};3M")
    assert names(top) == ["topic002", "topic001", "topic000"]
    feed(top, f"\x1b[<0;{heading.index('DEPTH ~') + 1};3M\x1b[<0;500;19M")  # a graph has no order
    assert names(top) == ["topic002", "topic001", "topic000"]
    feed(top, "\x1b[<0;5;5M\r")
    assert names(top) == ["topic001/a", "topic001/b"]


def test_filtering() -> None:
    top = Top(first=tables(), view="channels")
    feed(top, "/001 B")
    assert shown(top)[0] == "filter: 001 B_ | a summary"
    assert names(top) == ["topic001/b"]
    feed(top, "\x7f\x7fq")  # a letter, and not the end
    assert names(top) == []
    feed(top, "\x7f\r2 ")
    assert not top.is_over
    assert shown(top)[0] == "held | filter: 001 | a summary"
    feed(top, "\x1b")
    assert len(names(top)) == 3


def test_enter_leads_from_a_topic_to_its_clients() -> None:
    top = Top(first=tables())
    shown(top)
    assert not top.with_clients
    feed(top, "\r")
    assert names(top) == ["topic002/a"]
    feed(top, "\r")
    assert shown(top)[0] == "filter: topic002/a | a summary"
    assert names(top) == ["n"]
    assert top.with_clients
    feed(top, "\r")  # no further


def test_the_cursor_stays_on_its_row_and_the_page_follows_it() -> None:
    top = Top(first=tables(100))
    assert names(top, 14) == [f"topic{number:03d}" for number in range(99, 89, -1)]
    feed(top, "\x1b[6~\x1b[B")
    assert names(top, 14)[-1] == "topic088"
    top.press("r")
    assert "topic088" in names(top, 14)
    feed(top, "\x1b[F")
    assert names(top, 14)[-1] == "topic099"
    top.take(tables(10))  # it is gone
    assert names(top, 14) == [f"topic{number:03d}" for number in range(10)]
    feed(top, "\x1b[H\x1b[<65;1;1M\r")
    assert names(top) == ["topic001/a", "topic001/b"]


def test_held_figures_and_the_end() -> None:
    top = Top(first=tables())
    top.press(" ")
    top.take(tables(0))
    assert len(names(top)) == 3
    top.press(" ")
    top.take(tables(0))
    assert names(top) == []
    for key in ("up", "down", "enter", "end"):
        top.press(key)
    top.press("q")
    assert top.is_over


@pytest.mark.parametrize(
    ("view", "key", "question", "action"),
    [
        ("topics", "p", "Pause topic topic002? y/n", Action("pause", "topic002")),
        (
            "topics",
            "e",
            "Drop all messages of topic topic002 that no channel has yet? y/n",
            Action("empty", "topic002"),
        ),
        ("channels", "p", "Pause channel topic001/a? y/n", Action("pause", "topic001", "a")),
        ("channels", "e", "Drop all messages of channel topic001/a, also", Action("empty", "topic001", "a")),
        ("channels", "t", "Show the messages of topic topic001 as they come", Action("tail", "topic001", "a")),
    ],
)
def test_an_action_is_done_after_a_question(view: str, key: str, question: str, action: Action) -> None:
    top = Top(view=view, first=tables())
    for answer in ("n", "escape", "enter", "q", key):
        shown(top)
        top.press(key)
        assert shown(top)[-1].startswith(question)
        top.press(answer)
        assert not top.wanted
        assert not top.is_over
        assert shown(top)[-1].startswith("1-4 table")
    top.press(key)
    top.press("y")
    assert [*top.wanted] == [action]


def test_what_is_paused_can_be_unpaused() -> None:
    found = tables()
    found.rows["channels"] = [row("channels", "t/c", 1.0, STATE="paused, no consumers")]
    found.rows["topics"] = [row("topics", "t", 1.0, STATE="paused ×2")]  # its channels are
    top = Top(first=found, view="channels")
    shown(top)
    feed(top, "py1")
    shown(top)
    feed(top, "py")
    assert [*top.wanted] == [Action("unpause", "t", "c"), Action("pause", "t")]


def test_clients_and_nodes_have_no_actions() -> None:
    top = Top(view="clients", first=tables())
    shown(top)
    feed(top, "ey")
    assert shown(top)[-1].startswith("1-4 table")
    top.press("e")
    assert shown(top)[-1] == "this is for topics (1) and channels (2)"
    assert not top.wanted


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_table_fits_and_keeps_what_matters(width: int) -> None:
    assert all(line.no_wrap for line in Top(first=tables()).lines(width, 10))
    for kind in KINDS.values():
        found = Row("k", {each.name: "a" * 12 if each.kind == "text" else 1234.0 for each in kind.columns}, (1.0,) * 12)
        grid = grid_of(kind, [found], width)
        columns = [*grid.widths]
        assert width < 80 or grid.starts[columns[-1]] + grid.widths[columns[-1]] <= width
        assert columns[0] == kind.columns[0].name
        assert width < 200 or columns == [each.name for each in kind.columns]
        assert width > 80 or len(columns) < len(kind.columns)


# -- the cluster ----------------------------------------------------------------------------------


@contextmanager
def polled(*nsqds: Running) -> Iterator[Poll]:
    poll = Poll(Daemons(tuple(each.http_address for each in nsqds), (), OPTIONS))
    try:
        yield poll
    finally:
        poll.close()


@pytest.mark.commands
def test_an_nsqd_that_goes_away_is_a_warning() -> None:
    with running_nsqd("process") as one, running_nsqd("process") as two, polled(one, two) as poll:
        fill(one, "clicks", [b"1"], "archive")
        top = Top(view="nodes", first=poll.take())
        assert len(names(top)) == 2
        two.kill()

        def lines() -> list[str]:
            top.take(poll.take())
            return shown(top, width=200)

        wait_until(lambda: sum(line.endswith("no answer") for line in lines()) == 1, PATIENCE)
        assert two.http_address in lines()[-2]


@pytest.mark.commands
def test_a_poll_that_is_closed_asks_no_more() -> None:
    with running_nsqd("process") as nsqd, polled(nsqd) as poll:
        assert not poll.take().is_silent
        poll.close()
        with pytest.raises(NotRunning):
            poll.take()
