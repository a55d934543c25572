"""The screen of ``gnsq-like top``, driven by textual's Pilot, in front of real daemons."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from gnsq_like.cli.top_figures import KINDS, Row
from gnsq_like.cli.top_poll import Poll
from gnsq_like.cli.top_screen import TopApp, fitting
from gnsq_like.errors import NotRunning
from gnsq_like.tools.asking import Daemons
from tests.support.commands import PATIENCE
from tests.support.daemons import Running, running_nsqd
from tests.support.tools import fill, running_tool

pytestmark = pytest.mark.commands

OPTIONS = {"timeout": PATIENCE, "connect_timeout": PATIENCE, "verify": True, "cert": None}


@contextmanager
def polled(*nsqds: Running) -> Iterator[Poll]:
    poll = Poll(Daemons(tuple(each.http_address for each in nsqds), (), OPTIONS))
    try:
        yield poll
    finally:
        poll.close()


def drive(app: TopApp, steps: Callable[[Pilot[int]], Coroutine[Any, Any, None]], width: int = 120) -> None:
    """Run the screen, and the steps of a user."""

    async def run() -> None:
        async with app.run_test(size=(width, 24)) as pilot:
            await steps(pilot)

    asyncio.run(run())


async def until(pilot: Pilot[int], condition: Callable[[], object]) -> None:
    """Let the screen work until something is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, rows_of(pilot.app)
        await pilot.pause(0.02)


def rows_of(app: Any) -> list[list[str]]:
    """The cells of all rows."""
    table = app.table
    return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]


def names_of(app: Any) -> list[str]:
    return [row[0] for row in rows_of(app)]


def headings_of(app: Any) -> list[str]:
    return [str(column.label) for column in app.table.ordered_columns]


def test_tables_are_chosen_sorted_and_filtered_by_keys() -> None:
    with running_nsqd("process") as nsqd:
        fill(nsqd, "clicks", [b"1", b"2", b"3"], "archive", "mails")
        fill(nsqd, "orders", [b"1"], "archive")
        with polled(nsqd) as poll:
            app = TopApp(poll, 0.05)

            async def steps(pilot: Pilot[int]) -> None:
                await until(pilot, lambda: names_of(app) == ["clicks", "orders"])
                await until(pilot, lambda: rows_of(app)[0][1] == "6")
                assert headings_of(app)[:2] == ["TOPIC", "DEPTH▼"]
                # A key's effect may come after press(), which takes a busy machine's pause for the end of all work.
                await pilot.press("r")
                await until(pilot, lambda: names_of(app) == ["orders", "clicks"])
                await pilot.press("S")
                await until(pilot, lambda: headings_of(app)[0] == "TOPIC▲" and names_of(app) == ["clicks", "orders"])
                await pilot.press("2")
                await until(pilot, lambda: len(names_of(app)) == 3)
                assert {*names_of(app)} == {"clicks/archive", "clicks/mails", "orders/archive"}
                await pilot.press("slash", *"arch ord")
                await until(pilot, lambda: names_of(app) == ["orders/archive"])
                await pilot.press("enter", "p")
                await until(pilot, lambda: app.is_paused)  # the key was for the table, and not for the filter
                assert names_of(app) == ["orders/archive"]
                await pilot.press("p", "escape")
                await until(pilot, lambda: len(names_of(app)) == 3)
                await pilot.press("4")
                await until(pilot, lambda: names_of(app) == [nsqd.http_address])
                await pilot.press("q")

            drive(app, steps)
            assert app.return_code == 0


def test_enter_leads_from_a_topic_to_its_clients_and_figures_are_renewed() -> None:
    with running_nsqd("process") as nsqd:
        fill(nsqd, "clicks", [b"1"], "archive")
        fill(nsqd, "orders", [], "archive")
        # A process, because textual's loop has this thread for itself.
        consumer = ["tail", "--topic=clicks", "--channel=archive", f"--nsqd-tcp-address={nsqd.tcp_address}", "--create"]
        with polled(nsqd) as poll, running_tool(*consumer):
            app = TopApp(poll, 0.05)

            async def steps(pilot: Pilot[int]) -> None:
                await until(pilot, lambda: "clicks" in names_of(app))
                await pilot.press("slash", *"cli", "enter", "enter")
                await until(pilot, lambda: names_of(app) == ["clicks/archive"])
                await pilot.press("enter")
                await until(pilot, lambda: [row[1] for row in rows_of(app)] == ["clicks/archive"])
                assert app.look.kind.name == "clients"
                await pilot.press("2", "escape")
                await until(pilot, lambda: len(names_of(app)) == 2)
                await asyncio.to_thread(fill, nsqd, "orders", [b"x"] * 7)
                await until(pilot, lambda: ["orders/archive", "7"] in [row[:2] for row in rows_of(app)])

            drive(app, steps)


def test_an_nsqd_that_goes_away_is_a_warning() -> None:
    with running_nsqd("process") as one, running_nsqd("process") as two:
        fill(one, "clicks", [b"1"], "archive")
        with polled(one, two) as poll:
            app = TopApp(poll, 0.05, view="nodes")

            async def steps(pilot: Pilot[int]) -> None:
                await until(pilot, lambda: len(names_of(app)) == 2)
                two.kill()
                await until(pilot, lambda: any(row[-1] == "no answer" for row in rows_of(app)))
                warnings = app.query_one("#warnings", Static)
                assert not warnings.has_class("empty")
                assert two.http_address in str(warnings.render())

            drive(app, steps)


def test_a_poll_that_is_closed_asks_no_more() -> None:
    with running_nsqd("process") as nsqd, polled(nsqd) as poll:
        assert not poll.take().is_silent
        poll.close()
        with pytest.raises(NotRunning):
            poll.take()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_table_fits_and_keeps_what_matters(width: int) -> None:
    for kind in KINDS.values():
        row = Row("k", {each.name: "a" * 12 if each.kind == "text" else 1234.0 for each in kind.columns}, (1.0,) * 12)
        columns = fitting(kind, [row], width)
        # 12 characters of text, and headings with their mark, each with a blank on both sides.
        assert sum(max(len(each.name) + 1, len(row.text(each))) + 2 for each in columns) <= width
        assert columns[0] == kind.columns[0]
        assert width < 200 or columns == list(kind.columns)
        assert width > 80 or len(columns) < len(kind.columns)
