"""``gnsq-like run``: the command and its exit status; the work is in ``workers``.

This process becomes the supervisor, so it loads neither gevent nor the user's code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.exits import CannotRun
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Decorator, Duration, Function, Integer, option, switch
from gnsq_like.errors import NSQError, UsageError
from gnsq_like.server.shared.gotext import format_duration
from gnsq_like.workers.master import Supervisor
from gnsq_like.workers.plan import Flag, Plan, flags
from gnsq_like.workers.process import LEVELS

if TYPE_CHECKING:
    from gnsq_like.cli.tables import Cell

_EPILOG = "Each option may also be set in the environment (NSQ_PROCESSES for --processes) or in a file (--config)."


def _supervision(function: Function) -> Function:
    """A decorator: the options of a supervisor."""
    for flag in reversed(list(flags())):
        function = _option(flag)(function)
    return function


def _option(flag: Flag) -> Decorator:
    name = f"--{flag.name.replace('_', '-')}"
    if flag.kind is bool:
        return switch(name, help=flag.help)
    if flag.kind is int:
        return option(name, type=Integer(int(flag.least or 0)), default=flag.default, help=flag.help)
    if flag.kind is float:
        default = format_duration(flag.default)
        return option(name, type=Duration(), default=default, show_default=bool(flag.default), help=flag.help)
    return option(name, default=flag.default, metavar=flag.metavar, help=flag.help)


@click.command("run", cls=ToolCommand, epilog=_EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="MODULE[:NAME|:FUNCTION()]...")
@option(
    "--app-dir",
    type=click.Path(exists=True, file_okay=False),
    default=".",
    help="Directory in which modules are searched for first.",
)
@switch("--patch", help="Monkey-patch the processes with gevent before anything else is imported.")
@switch("--check", help="List the Readers, and exit.")
@switch("--json", "as_json", help="With --check: as JSON.")
@_supervision
@option("--log-level", type=click.Choice(LEVELS), default="info", help="Lowest level to log.")
def run(
    targets: tuple[str, ...], app_dir: str, patch: bool, check: bool, as_json: bool, verbose: bool, **options: Any
) -> None:
    """Run the Readers that a module defines, in one or several processes.

    \b
    gnsq-like run shop.readers                   all Readers in global variables
    gnsq-like run shop.readers:archive           one, or a list of them
    gnsq-like run "shop.readers:make_readers()"  those that a function returns

    A Reader's max_in_flight is divided among the processes. A process that dies is replaced, after a delay if it dies
    repeatedly. Handlers run in greenlets, and must not block without --patch, unless their Reader has spawn="thread".

    \b
    Signals:
      TERM, INT  end: running handlers have --stop-timeout; a second one
                 ends at once
      HUP        replace all processes, for new code
      USR1       log the stacks of all threads and greenlets

    \b
    Exit status:
      0  ended by a signal, and all handlers had ended
      1  the same, but handlers were cut short, or a process was killed
      2  the Readers could not be run
    """
    if as_json and not check:
        raise click.UsageError("--json is for --check")
    plan = Plan(
        loader="gnsq_like.workers.user_code:load",
        arguments=targets,
        app_dir=str(Path(app_dir).resolve()),
        patch=patch,
        measures=True,
        verbose=verbose,
        **options,
    )
    try:
        if check:
            _show(plan, as_json)
        else:
            raise SystemExit(Supervisor(plan).run())
    except UsageError:
        raise
    except NSQError as exc:
        raise CannotRun(str(exc)) from exc


def _show(plan: Plan, as_json: bool) -> None:
    """Load the Readers as a worker does, but in this process, and list them."""
    sys.path.insert(0, plan.app_dir)
    if plan.patch:
        from gevent import monkey

        monkey.patch_all()
    from gnsq_like.cli.tables import print_json, print_table
    from gnsq_like.workers.roster import share
    from gnsq_like.workers.user_code import load
    from gnsq_like.workers.worker import describe

    readers = [describe(reader) for reader in load(*plan.arguments)]
    for index, reader in enumerate(readers):
        reader["shares"] = [
            share(reader["max_in_flight"], plan.processes, slot + index) for slot in range(plan.processes)
        ]
    if as_json:
        print_json(readers)
        return
    shared = [f"EACH OF {plan.processes}"] if plan.processes > 1 else []
    print_table(
        ("TOPIC", "CHANNEL", "HANDLER", "RUNS IN", "IN FLIGHT", *shared),
        [_row(reader)[: 5 + len(shared)] for reader in readers],
        ("IN FLIGHT", *shared),
    )


def _row(reader: dict[str, Any]) -> list[Cell]:
    batch = f", lists of {reader['batch']}" if reader["batch"] else ""
    least, most = min(reader["shares"]), max(reader["shares"])
    return [
        *(reader["topic"], reader["channel"], reader["handler"] + batch, f"{reader['spawn']}s"),
        *(reader["max_in_flight"], least if least == most else f"{least} or {most}"),
    ]
