"""``gnsq-like nsqd`` and ``gnsq-like nsqlookupd``: NSQ's daemons in Python as processes, with NSQ's flags.

They log to stderr as NSQ's do, beginning with the addresses they listen on, which name the ports chosen for port 0
(``server/daemon_process.py`` reads them). The flags are made from the daemons' options.

Values of NSQ's config files (TOML, with the names of docs/internals 7) become the defaults of the flags, so the command
line overrides them. Durations are strings such as "250ms"; bare integers mean milliseconds.
"""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

import click
import gevent
import gevent.os
from gevent.event import Event

from gnsq_like._version import __version__
from gnsq_like.cli.config_file import read_toml
from gnsq_like.cli.logs import log_to_stderr
from gnsq_like.cli.tool_options import Decorator, Function
from gnsq_like.errors import UsageError, did_you_mean
from gnsq_like.options.text import parse_duration
from gnsq_like.runtime.signals import on_signals
from gnsq_like.server import Nsqd, NsqdOptions, Nsqlookupd, NsqlookupdOptions
from gnsq_like.server.daemon_options import VERSION, config_name, version_line
from gnsq_like.server.shared.gotext import format_duration

if TYPE_CHECKING:
    from gnsq_like.admin import AdminServer

_ONE_DASH = re.compile("-[a-z][a-z0-9]")
#: Options of NSQ's daemons that ours accept, in files and on the command line, and ignore with a warning.
WITHOUT_EFFECT = frozenset(
    {
        "max_message_size",  # of old files
        "verbose",
        "worker_id",
        "queue_scan_worker_pool_max",
        "queue_scan_selection_count",
        "statsd_address",
        "statsd_prefix",
        "statsd_interval",
        "statsd_mem_stats",
        "statsd_udp_packet_size",
        "statsd_exclude_ephemeral",
    }
)
#: The key in a context for the names of ignored options.
_IGNORED = "gnsq_like.ignored"


def duration(text: str) -> float:
    """Read a flag's duration; click names the flag of a wrong one."""
    try:
        return parse_duration(text)
    except UsageError as exc:
        raise click.BadParameter(f"{text!r}: {exc}") from None


def _percentiles(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[float, ...]:
    try:
        return tuple(float(number) for text in given for number in text.split(",") if number)
    except ValueError:
        raise click.BadParameter(f"{','.join(given)!r} is not a list of numbers such as 0.99,0.5") from None


#: Arguments for click.option that some options need besides those that their defaults imply; "flag" is the name of the
#: flag, without its dashes.
_SPECIAL: dict[str, dict[str, object]] = {
    # As a command, nsqd keeps its data in the current directory, as NSQ's does; in a user's process, in memory.
    "data_path": {"default": "."},
    "e2e_processing_latency_percentiles": {"callback": _percentiles},
    "node_id": {"type": int},
    "tls_required": {"is_flag": False, "flag_value": "true", "default": "false"},
}


def _flag(field: Field[object], special: Mapping[str, object]) -> Decorator:
    """The command-line flag for one option."""
    flag = field.name.replace("_", "-")
    default = None if field.default is MISSING else field.default
    arguments: dict[str, Any] = {"default": default}
    if isinstance(default, tuple):
        flag = flag.removesuffix("es") if flag.endswith("sses") else flag.removesuffix("s")
        arguments["multiple"] = True
    elif isinstance(default, bool):
        # As in Go: --snappy=false, and a bare --snappy for true.
        arguments = {"type": bool, "is_flag": False, "flag_value": "true", "default": str(default).lower()}
    elif isinstance(default, float):
        arguments = {"type": duration, "default": format_duration(default)}
    arguments |= special
    flag = arguments.pop("flag", flag)
    shown = arguments.get("default") not in (None, "", ())
    return click.option(f"--{flag}", field.name, show_default=shown, help=field.metadata["text"], **arguments)


def flags_of(
    options: type, special: Mapping[str, Mapping[str, object]], ignored: frozenset[str] = WITHOUT_EFFECT
) -> Callable[[Function], Function]:
    """A decorator: the flags for all options of a daemon, and those that all daemons have.

    :param special: by option, arguments for click.option
    :param ignored: names that are accepted, and have no effect
    """

    def read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
        if path is not None:
            context.default_map, names = defaults_from(path, options, ignored)
            _note_ignored(context, names)

    def ignore(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
        if given is not None:
            _note_ignored(context, parameter.opts)

    def add(function: Function) -> Function:
        for field in reversed(fields(options)):
            function = _flag(field, special.get(field.name, {}))(function)
        for name in sorted(ignored):
            flag = f"--{name.replace('_', '-')}"
            settings: dict[str, Any] = {"is_flag": False, "flag_value": "", "expose_value": False, "hidden": True}
            function = click.option(flag, callback=ignore, **settings)(function)
        name = {"AdminOptions": "nsqadmin"}.get(options.__name__, options.__name__.removesuffix("Options").lower())
        function = click.version_option(VERSION, message=f"{version_line(name)} gnsq_like {__version__}")(function)
        return click.option(
            "--config",
            is_eager=True,
            expose_value=False,
            metavar="PATH",
            callback=read_config,
            help="TOML file of these options by NSQ's names; the command line overrides it",
        )(function)

    return add


_exit_with_parent = click.option(
    "--exit-with-parent",
    is_flag=True,
    help="stop when standard input ends, and so with a parent that holds a pipe to it, however the parent ends",
)


def _note_ignored(context: click.Context, names: Iterable[str]) -> None:
    context.meta.setdefault(_IGNORED, []).extend(names)


class DaemonCommand(click.Command):
    """A command whose flags may be written with one dash, as in Go; --no-X is --X=false.

    Empty arguments, of variables that are not set, are left out; ignored options are named in one line on stderr.
    """

    def invoke(self, ctx: click.Context) -> Any:
        if names := ctx.meta.get(_IGNORED):
            page = "admin.rst" if self.name == "admin" else "daemons.rst"
            click.echo(f"WARNING: without an effect here, see docs/{page}: {', '.join(names)}", err=True)
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches = {f"--no-{param.opts[0][2:]}": param.opts[0] for param in self.params if param.type is click.BOOL}
        dashed = [f"-{arg}" if _ONE_DASH.match(arg) else arg for arg in args]
        ctx.allow_extra_args = True
        super().parse_args(ctx, [f"{switches[arg]}=false" if arg in switches else arg for arg in dashed])
        if extra := [arg for arg in ctx.args if arg]:
            raise click.UsageError(f"there are no arguments without a name: {' '.join(extra)}", ctx)
        return []


def run(
    daemon: Nsqd | Nsqlookupd | AdminServer,
    name: str,
    exit_with_parent: bool = False,
    on_start: Callable[[], object] = lambda: None,
) -> None:
    """Run until a signal arrives, or the parent ends."""
    log_to_stderr(daemon.options.log_level, daemon.options.log_prefix)
    stopped = Event()
    # Before the addresses are logged: a parent that reads them may send a signal at once.
    with on_signals((signal.SIGINT, signal.SIGTERM), lambda number: stopped.set()):
        if exit_with_parent:
            gevent.spawn(_wait_for_the_parents_end).link(lambda _: stopped.set())
        try:
            daemon.start()
        except (OSError, UsageError) as exc:
            raise click.ClickException(f"{name} cannot start: {getattr(exc, 'strerror', exc)}") from None
        on_start()
        stopped.wait()
        daemon.stop()


def _collect_less_garbage() -> None:
    """Collect garbage for every 50,000 new objects instead of 700: messages are objects, and never in cycles.

    [Saves a quarter of the time of an MPUB.]
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _wait_for_the_parents_end() -> None:
    while gevent.os.tp_read(0, 4096):
        pass


def _given(values: dict[str, object]) -> dict[str, Any]:
    """The options that were given; the others keep their computed defaults."""
    return {name: value for name, value in values.items() if value is not None}


@click.command(cls=DaemonCommand)
@flags_of(NsqdOptions, _SPECIAL)
@_exit_with_parent
def nsqd(exit_with_parent: bool, **values: object) -> None:
    """Run an nsqd in Python."""
    try:
        options = NsqdOptions(**_given(values))
    except UsageError as exc:
        raise click.UsageError(str(exc)) from None
    daemon = Nsqd(options)
    run(daemon, "nsqd", exit_with_parent, _collect_less_garbage)
    if daemon.lost_count:
        raise click.ClickException(f"{daemon.lost_count} messages were in memory and could not be written to disk")


@click.command(cls=DaemonCommand)
@flags_of(NsqlookupdOptions, _SPECIAL)
@_exit_with_parent
def nsqlookupd(exit_with_parent: bool, **values: object) -> None:
    """Run an nsqlookupd in Python."""
    run(Nsqlookupd(NsqlookupdOptions(**_given(values))), "nsqlookupd", exit_with_parent, _collect_less_garbage)


def defaults_from(
    path: str, options: type, ignored: frozenset[str] = WITHOUT_EFFECT
) -> tuple[dict[str, object], list[str]]:
    """The values in a config file, by the names of ``options``' fields, as text for the flags' own parsers.

    As in NSQ's daemons, a known name with dashes is ignored: "log-level" of NSQ's older examples.

    :param options: the options class of the daemon
    :param ignored: names without an effect
    :return: the values, and the names that are ignored
    :raises click.UsageError: if the file cannot be read, is not TOML, or names an unknown option
    """
    known = {config_name(field.name): field for field in fields(options)}
    defaults: dict[str, object] = {}
    left_out: list[str] = []
    for name, value in read_toml(path).items():
        field, underscored = known.get(name), name.replace("-", "_")
        if field is not None:
            defaults[field.name] = _as_flag(field.default, value, f"{path}: {name}")
        elif underscored in known:
            left_out.append(f"{name} in {path} (its name there is {underscored})")
        elif underscored in ignored:
            left_out.append(f"{name} in {path}")
        else:
            raise click.UsageError(f"{path}: there is no option {name}{did_you_mean(name, known)}")
    return defaults, left_out


def _as_flag(default: object, value: object, where: str) -> object:
    """A value as it would be written on the command line."""
    if isinstance(value, dict) and default is MISSING:  # a table of names
        return [f"{name}={','.join(each) if isinstance(each, list) else each}" for name, each in value.items()]
    if isinstance(default, tuple):
        if isinstance(value, dict):
            raise click.UsageError(f"{where} must be a list")
        return [str(each) for each in (value if isinstance(value, list) else str(value).split(","))]
    if isinstance(value, list | dict):
        raise click.UsageError(f"{where} must be one value")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(default, float) and isinstance(value, int):
        return f"{value}ms"
    return str(value)
