"""``gnsq-like admin`` and ``admin-password``: nsqadmin in Python as a process, with nsqadmin's flags and some more.

It logs as NSQ's daemons do. The flags are made from AdminOptions.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from gnsq_like.admin import AdminOptions, AdminServer
from gnsq_like.cli.daemon_commands import DaemonCommand, flags_of, run
from gnsq_like.errors import UsageError
from gnsq_like.runtime.files import replace_file

#: Flags and names of nsqadmin without an effect here.
_IGNORED = frozenset(
    {
        "verbose",
        "dev_static_dir",
        "template_dir",
        "graphite_url",
        "proxy_graphite",
        "statsd_prefix",
        "statsd_counter_format",
        "statsd_gauge_format",
        "statsd_interval",
        "use_statsd_prefixes",
    }
)


def _clusters(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, object]:
    """NAME=ADDRESS,... as a mapping; "nsqd:" before the first address applies to all of them."""
    found: dict[str, object] = {}
    for name, value in _named(given).items():
        addresses = value.split(",")
        if addresses[0].startswith("nsqd:"):
            addresses = [f"nsqd:{part.removeprefix('nsqd:')}" for part in addresses]
        found[name] = tuple(addresses)
    return found


def _named(given: tuple[str, ...]) -> dict[str, str]:
    """NAME=ADDRESS as a mapping."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, address = each.partition("=")
        if not (name and equals and address):
            raise click.BadParameter(f"{each!r} is not NAME=ADDRESS")
        found[name] = address
    return found


_TABLE: dict[str, object] = {"multiple": True, "default": ()}
_SPECIAL: dict[str, dict[str, object]] = {
    "clusters": {**_TABLE, "flag": "cluster", "callback": _clusters},
    "trusted_proxies": {"flag": "trusted-proxy"},
    "nsqd_auth_secret": {"envvar": "NSQ_AUTH_SECRET"},
}


@click.command(cls=DaemonCommand)
@flags_of(AdminOptions, _SPECIAL, _IGNORED)
def admin(**values: Any) -> None:
    """Run nsqadmin in Python: pages and a JSON API for one cluster or several.

    It listens on the loopback address. Before you open it to others, see docs/admin.rst: without --password-file,
    --admin-user or --read-only, anyone who reaches it may change everything.
    """
    try:
        server = AdminServer(AdminOptions(**values))
    except UsageError as exc:
        raise click.UsageError(str(exc)) from None
    log = logging.getLogger("gnsq_like.nsqadmin")

    def show_addresses() -> None:
        for scheme, address in (("http", server.http_address), ("https", server.https_address)):
            if address:
                log.info("open %s://%s%s", scheme, address, server.options.base_path)

    run(server, "admin", on_start=show_addresses)


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
