"""``gnsq-like admin``: nsqadmin in Python as a process, with nsqadmin's flags and some of our own.

It logs as NSQ's daemons do. The flags are made from AdminOptions.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from gnsq_like._version import __version__
from gnsq_like.admin import AdminOptions, AdminServer
from gnsq_like.cli.config_file import defaults_from
from gnsq_like.cli.daemons import DaemonCommand, duration
from gnsq_like.cli.exits import CannotRun
from gnsq_like.cli.logs import log_to_stderr
from gnsq_like.durable_file import replace_file
from gnsq_like.durations import format_duration
from gnsq_like.errors import UsageError
from gnsq_like.server.options import VERSION, version_line

#: Options that repeat, whose flags are no plain singular; and those that are tables.
_FLAGS = {"trusted_proxies": "trusted-proxy", "dead_letter_suffixes": "dead-letter-suffix"}
_TABLES = ("clusters", "pipelines")
#: Flags and names of nsqadmin without an effect here.
_IGNORED = frozenset({"verbose", "dev_static_dir"})


def _clusters(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """NAME=ADDRESS,... as a mapping; "nsqd:" before the first address is for all of them."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{each!r} is not NAME=ADDRESS")
        addresses = value.split(",")
        if addresses[0].startswith("nsqd:"):
            addresses = [f"nsqd:{part.removeprefix('nsqd:')}" for part in addresses]
        found[name] = tuple(addresses)
    return found


def _pipelines(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """NAME=ADDRESS as a mapping."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, address = each.partition("=")
        if not (name and equals and address):
            raise click.BadParameter(f"{each!r} is not NAME=ADDRESS")
        found[name] = address
    return found


def _flag(field: Field[Any]) -> Callable[[Any], Any]:
    name, default, text = field.name, field.default, field.metadata["text"]
    flag = _FLAGS.get(name, name.replace("_", "-"))
    if name in _TABLES:
        read: Any = _clusters if name == "clusters" else _pipelines
        return click.option(f"--{flag.removesuffix('s')}", name, multiple=True, callback=read, help=text)
    shown: dict[str, Any] = {"default": default, "show_default": default not in ("", ()), "help": text}
    if isinstance(default, tuple):
        if name not in _FLAGS:
            flag = flag.removesuffix("es") if flag.endswith("sses") else flag.removesuffix("s")
        return click.option(f"--{flag}", name, multiple=True, **shown)
    if isinstance(default, bool):
        # As in Go: --history=false, and a bare --read-only for true; and --no-peek, as users expect.
        option = click.option(f"--{flag}", name, type=bool, is_flag=False, flag_value="true", **shown)
        if not default:
            return option
        negative = click.option(f"--no-{flag}", f"no_{name}", is_flag=True, hidden=True)
        return lambda function: option(negative(function))
    if name == "nsqd_auth_secret":
        shown["envvar"] = "NSQ_AUTH_SECRET"
    if isinstance(default, float):
        shown |= {"type": duration, "default": format_duration(default)}
    return click.option(f"--{flag}", name, **shown)


def _flags(function: Any) -> Any:
    for field in reversed(fields(AdminOptions)):
        function = _flag(field)(function)
    for name in sorted(_IGNORED):
        flag = f"--{name.replace('_', '-')}"
        function = click.option(flag, is_flag=False, flag_value="", expose_value=False, hidden=True)(function)
    function = click.version_option(VERSION, message=f"{version_line('nsqadmin')} gnsq_like {__version__}")(function)
    return click.option(
        "--config",
        is_eager=True,
        expose_value=False,
        metavar="PATH",
        callback=_read_config,
        help="TOML file of these options by NSQ's names; the command line overrides it",
    )(function)


def _read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is not None:
        context.default_map = defaults_from(path, AdminOptions, _IGNORED)


@click.command(cls=DaemonCommand)
@_flags
def admin(**values: Any) -> None:
    """Run nsqadmin in Python: pages and a JSON API for one cluster or several.

    It listens on the loopback address. Before you open it to others, see docs/admin.rst: whoever reaches it may change
    everything, unless --password-file, --admin-user or --read-only says otherwise.
    """
    for name in ("history", "peek"):
        if values.pop(f"no_{name}"):
            values[name] = False
    try:
        server = AdminServer(AdminOptions(**values))
    except UsageError as exc:
        raise click.UsageError(str(exc)) from None
    run(server)


def run(server: AdminServer) -> None:
    """Run until a signal arrives."""
    import gevent
    from gevent.event import Event

    log_to_stderr(server.options.log_level, server.options.log_prefix)
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, stopped.set)
    try:
        server.start()
    except OSError as exc:
        raise CannotRun(f"admin cannot start: {exc.strerror}") from None
    log = logging.getLogger("gnsq_like.nsqadmin")
    for scheme, address in (("http", server.http_address), ("https", server.https_address)):
        if address:
            log.info("open %s://%s%s", scheme, address, server.options.base_path)
    stopped.wait()
    server.stop()


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("user")
@click.password_option(help="Default: asked for.")
def admin_password(path: Path, user: str, password: str) -> None:
    """Set a user's password in a file for --password-file; an empty password removes the user."""
    from gnsq_like.admin.web.passwords import password_line, read_passwords

    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines:
            read_passwords(str(path))
        kept = [line for line in lines if line.strip().partition(":")[0] != user]
        if password:
            kept.append(password_line(user, password))
    except (OSError, UsageError) as exc:
        raise click.ClickException(str(exc)) from None
    replace_file(path, "".join(f"{line}\n" for line in kept).encode(), mode=0o600)
