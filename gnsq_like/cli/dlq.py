"""``gnsq-like dlq``: lists, shows, replays and drops the messages of a dead-letter topic."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import connects
from gnsq_like.cli.cluster_flags import asks_cluster, json_switch
from gnsq_like.cli.confirm import confirm, plural, yes_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.logs import log_to_stderr
from gnsq_like.cli.tables import Cell, print_json, print_table, warn
from gnsq_like.cli.tool_command import ToolCommand, one_line
from gnsq_like.cli.tool_options import Function, Integer, Regex, option, switch
from gnsq_like.cli.topics import TOPIC

if TYPE_CHECKING:
    from gnsq_like import Message
    from gnsq_like.cluster.daemons import Daemons
    from gnsq_like.tools.dead_letters import DeadLetterQueue

HEADINGS = ("ID", "FROM", "ATTEMPTS", "GIVEN UP", "BYTES", "NSQD", "REASON")
DISPENSABLE = ("NSQD", "BYTES", "GIVEN UP", "ATTEMPTS")
#: Characters of a reason in a table; --json has all of them.
_REASON_LENGTH = 40
#: Characters that may control a terminal.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@click.group("dlq", short_help="List, show, replay and drop dead letters.")
def dlq() -> None:
    """List, show, replay and drop the messages of a dead-letter topic.

    Letters are taken in flight, and given back unless they are replayed or dropped. An ID is that of a message in this
    topic, as "list" shows it; NSQD/ID distinguishes equal ids of several nsqds.
    """


#: Opens the queue, of this many letters at most; None for all.
Opened = Callable[[int | None], AbstractContextManager["DeadLetterQueue"]]


def _reads(function: Function) -> Function:
    """A decorator: the options that all commands share. The function gets the topic, and ``opened``."""

    @functools.wraps(function)
    def command(
        *,
        topic: str,
        daemons: Daemons,
        channel: str | None,
        connecting: dict[str, object],
        verbose: bool,
        **values: object,
    ) -> object:
        log_to_stderr("info" if verbose else "error", "gnsq-like dlq: ", with_tracebacks=verbose)
        return function(topic=topic, opened=functools.partial(_queue, daemons, topic, channel, connecting), **values)

    command = option("--reason", "matching", type=Regex(), help="Only these reasons.")(command)
    command = option("--channel", help="Channel to take them from; default: dead-letters.")(command)
    return asks_cluster(connects(command))


_MOST = option("-n", "--count", type=Integer(1), default=100, help="Most letters to read.")
_IDS = click.argument("ids", nargs=-1, metavar="[ID]...")


@dlq.command("list", cls=ToolCommand)
@TOPIC
@_MOST
@json_switch
@_reads
def list_letters(topic: str, as_json: bool, **arguments: Any) -> None:
    """List dead letters with their reasons."""
    letters = _read((), **arguments)
    if as_json:
        print_json(letters)
        return
    rows: list[list[Cell]] = []
    for each in letters:
        origin = "/".join(filter(None, [each.get("topic", ""), each.get("channel", "")]))
        reason = _shown(each.get("reason", "")).replace("\n", " ")
        short = reason if len(reason) <= _REASON_LENGTH else f"{reason[: _REASON_LENGTH - 1]}…"
        when = each.get("given_up", "-")
        rows.append([each["id"], origin or "-", each.get("attempts"), when, each["bytes"], each["nsqd"], short or "-"])
    print_table(HEADINGS, rows, DISPENSABLE)


@dlq.command("show", cls=ToolCommand)
@TOPIC
@_IDS
@_MOST
@json_switch
@_reads
def show_letters(topic: str, ids: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Show dead letters with their bodies; all of them, or these."""
    letters = _read(ids, **arguments)
    if as_json:
        print_json(letters)
        return
    for number, each in enumerate(letters):
        if number:
            click.echo()
        body = each.pop("body", None)
        for name, value in each.items():
            if name != "body_base64" and (value or not name.startswith("error_")):
                click.echo(f"{name.replace('_', ' ')}: {_shown(str(value))}")
        click.echo()
        click.echo(_shown(body) if body is not None else repr(base64.b64decode(each["body_base64"])))


@dlq.command("replay", cls=ToolCommand)
@TOPIC
@_IDS
@switch("--all", "everything", help="All letters.")
@option("--to", "destination", metavar="TOPIC", help="Topic to publish to, instead of the original one.")
@_reads
def replay_letters(topic: str, destination: str | None, **arguments: Any) -> None:
    """Publish dead letters again, to the topics that they came from.

    A letter is finished when nsqd has confirmed the message. If it cannot be published, it stays, and the exit status
    is 1. All channels of the original topic get the message, not only the one that gave it up.
    """
    from gnsq_like.cluster.operations import check_name

    if destination is not None:
        check_name("topic", destination)
    _change("replayed", lambda queue, name: queue.replay(name, destination), **arguments)


@dlq.command("drop", cls=ToolCommand)
@TOPIC
@_IDS
@switch("--all", "everything", help="All letters.")
@yes_switch
@_reads
def drop_letters(topic: str, ids: tuple[str, ...], yes: bool, **arguments: Any) -> None:
    """Finish dead letters; their messages are lost."""
    which = plural(len(ids), "dead letter") if ids else "all dead letters"
    if arguments["matching"]:
        which += f" whose reason matches {arguments['matching'].pattern!r}"
    if ids or arguments["everything"]:
        confirm(f"Drop {which} of topic {topic}?", yes)
    _change("dropped", lambda queue, name: queue.drop(name), ids=ids, **arguments)


# -- the work ------------------------------------------------------------------------------------------


@contextmanager
def _queue(
    daemons: Daemons, topic: str, channel: str | None, connecting: dict[str, object], most: int | None
) -> Iterator[DeadLetterQueue]:
    from gnsq_like.tools.dead_letters import DeadLetterQueue

    queue = DeadLetterQueue(daemons, topic, channel, most=most, options=connecting)
    warn(queue.failures)
    known = len(queue.failures)
    if queue.elsewhere:
        click.echo(f"Note: {plural(queue.elsewhere, 'letter')} in flight elsewhere, or deferred", err=True)
    with queue:
        yield queue
    warn(queue.failures[known:])


def _read(
    ids: tuple[str, ...], *, opened: Opened, matching: re.Pattern[str] | None, count: int
) -> list[dict[str, Any]]:
    """Letters as JSON has them; they are given back."""

    def work() -> list[dict[str, object]]:
        with opened(None if ids else count) as queue:
            wanted = _Wanted(ids, matching)
            found = []
            for message in queue.letters():
                if wanted.has(message):
                    found.append(_as_dict(message))
                    if wanted.is_complete:
                        break
            if not wanted.is_complete:
                _warn_of_unread(queue)
        wanted.check()
        return found

    return result_of(work)


def _change(
    done: str,
    change: Callable[[DeadLetterQueue, str], object],
    *,
    ids: tuple[str, ...],
    everything: bool,
    opened: Opened,
    matching: re.Pattern[str] | None,
) -> None:
    """Replay or drop; prints the number, also after a signal."""
    from gnsq_like.errors import NSQError
    from gnsq_like.tools.dead_letters import name_of

    if bool(ids) == everything:
        raise click.UsageError("give IDs, or --all")
    changed = 0
    errors: dict[str, int] = {}

    def work() -> None:
        nonlocal changed
        with opened(None) as queue:
            wanted = _Wanted(ids, matching)
            for message in queue.letters():
                if not wanted.has(message):
                    continue
                try:
                    change(queue, name_of(message))
                    changed += 1
                except NSQError as exc:
                    text = one_line(exc)
                    errors[text] = errors.get(text, 0) + 1
                if wanted.is_complete:
                    break
            if not wanted.is_complete:
                _warn_of_unread(queue)
        wanted.check()

    try:
        result_of(work)
    finally:
        click.echo(f"{plural(changed, 'letter')} {done}")
    for text, times in errors.items():
        click.echo(f"Warning: {plural(times, 'letter')} left: {text}", err=True)
    if errors:
        raise click.ClickException(f"{plural(sum(errors.values()), 'letter')} not {done}")


def _warn_of_unread(queue: DeadLetterQueue) -> None:
    if queue.unread:
        what = "the channel is paused, other consumers have them, or too many others are held"
        click.echo(f"Warning: {plural(queue.unread, 'letter')} could not be read: {what}", err=True)


class _Wanted:
    """The letters that the user has asked for."""

    def __init__(self, ids: tuple[str, ...], matching: re.Pattern[str] | None) -> None:
        self._missing = set(ids)
        self._ids = set(ids)
        self._matching = matching

    def has(self, message: Message) -> bool:
        from gnsq_like.tools.dead_letters import name_of, read_letter

        if self._ids:
            named = self._ids & {message.id, name_of(message)}
            self._missing -= named
            if not named:
                return False
        if self._matching is None:
            return True
        letter = read_letter(message)
        return letter is not None and self._matching.search(letter.reason) is not None

    @property
    def is_complete(self) -> bool:
        """Whether no other letter can be meant."""
        return bool(self._ids) and not self._missing and all("/" in each for each in self._ids)

    def check(self) -> None:
        """End the command if a letter was not there."""
        if self._missing:
            raise click.ClickException(f"there is no letter {', '.join(sorted(self._missing))}")


def _as_dict(message: Message) -> dict[str, object]:
    from gnsq_like.tools.dead_letters import read_letter

    letter = read_letter(message)
    body = letter.body if letter else message.body
    found: dict[str, object] = {"id": message.id, "nsqd": message.nsqd_address}
    if letter:
        found |= {
            "topic": letter.topic,
            "channel": letter.channel,
            "attempts": letter.attempts,
            "reason": letter.reason,
            "error_type": letter.error_type,
            "error_text": letter.error_text,
            "error_place": letter.error_place,
            "published": _time(letter.timestamp_ns),
            "given_up": _time(letter.given_up_ns),
        }
    else:
        found["published"] = _time(message.timestamp_ns)
    found["bytes"] = len(body)
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(body).decode()
    return found


def _time(nanoseconds: int) -> str:
    try:
        return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(nanoseconds)


def _shown(text: str) -> str:
    """Text without characters that control a terminal."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
