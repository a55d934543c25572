"""Shared by the commands that change a cluster: the confirmation before a deletion, and the last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gnsq_like.cli.tables import warn
from gnsq_like.cli.tool_options import switch

if TYPE_CHECKING:
    from gnsq_like.cluster.operations import Change

#: A decorator: ``--yes`` of a command that destroys something.
yes_switch = switch("-y", "--yes", help="Do not ask.")


def confirm(question: str, yes: bool) -> None:
    """Ask, unless the user has said yes; the process ends here with status 1 if the answer is no."""
    if yes:
        return
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
        raise click.ClickException("not confirmed; --yes does it without asking") from None
    raise click.ClickException("not confirmed")


def report(change: Change, done: str) -> None:
    """Print the change and the number of daemons that made it; exit with status 1 if one failed.

    :param done: such as "topic clicks: paused"
    """
    if change.places:
        click.echo(f"{done} at {change.places}")
    if change.failures:
        warn(change.failures[:-1])
        raise click.ClickException(" ".join(str(change.failures[-1]).split()))


def plural(count: int, noun: str, ending: str = "s") -> str:
    """ "1 nsqd", "2 nsqds"."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"
