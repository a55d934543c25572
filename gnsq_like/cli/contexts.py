"""``gnsq-like context``: options kept under a name, which ``--context`` or NSQ_CONTEXT chooses.

A context is a file as ``--config`` takes it (see ``tool_file``), in the user's config directory. Only the
user can read it, because it may hold secrets.
"""

from __future__ import annotations

import json
import os
import re

import click

from gnsq_like.cli.changes import confirm, yes_switch
from gnsq_like.cli.client_flags import client_flags
from gnsq_like.cli.daemon_flags import ADDRESSES, address_option, http_options
from gnsq_like.cli.tables import Cell, print_table
from gnsq_like.cli.tool_command import ToolCommand, as_click_wants
from gnsq_like.cli.tool_file import COMMON_NAMES, context_path, read_toml
from gnsq_like.cli.tool_options import ToolOption
from gnsq_like.durable_file import replace_file
from gnsq_like.options import ProducerOptions, ReaderOptions
from gnsq_like.tools.client_options import text_options

#: Names whose values are shown; those of options that may hold secrets are not, nor is anything that is not known.
_SHOWN = {name for name in COMMON_NAMES if not name.endswith("_opt")} - {
    name
    for kind in (ReaderOptions, ProducerOptions)
    for name, field in text_options(kind).items()
    if field.metadata["secret"]
}
_NAME = click.argument("name")


@click.group("context", short_help="Keep addresses and other options under a name.")
def context() -> None:
    """Keep the addresses of a cluster, and other options, under a name.

    \b
    gnsq-like context add prod -l 10.0.0.1 -l 10.0.0.2 --tls-v1
    gnsq-like tail clicks --context prod
    NSQ_CONTEXT=prod gnsq-like top
    """


class _Adding(ToolCommand):
    """Keeps what was typed, as it was typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = self.make_parser(ctx).parse_args(as_click_wants(args, self.params))[0]
        return super().parse_args(ctx, args)


@context.command("add", cls=_Adding)
@_NAME
@address_option("lookupd_http_addresses", "nsqlookupd")
@address_option("nsqd_tcp_addresses", "nsqd")
@address_option("nsqd_http_addresses", "HTTP address of an nsqd, if its port is not the next one", short=False)
@http_options
@yes_switch
@client_flags
def add_context(name: str, yes: bool, verbose: bool, **values: object) -> None:
    """Keep options under a name.

    Only what is typed is kept. A secret is better written into the file, whose path "context show" prints: other users
    of the machine can see command lines.
    """
    ctx = click.get_current_context()
    path = context_path(name)
    typed = {
        param.long_names[0]: ctx.obj[param.name]
        for param in ctx.command.params
        if isinstance(param, ToolOption) and param.name in ctx.obj and param.long_names[0] in COMMON_NAMES
    }
    if not typed:
        raise click.UsageError("nothing to keep: give addresses with -l or -d, or other options")
    if "nsqd_tcp_address" in typed:
        typed.setdefault("nsqd_http_address", [_next_port(each) for each in typed["nsqd_tcp_address"]])
    if path.exists():
        confirm(f"Replace context {name}?", yes)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"{each} = {json.dumps(value, ensure_ascii=False)}\n" for each, value in typed.items()]
    replace_file(path, "".join(lines).replace("\x7f", "\\u007f").encode(), mode=0o600)
    click.echo(f"context {name}: kept in {path}")


def _next_port(address: str) -> str:
    host, colon, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}" if colon and port.isdecimal() else address


@context.command("list", cls=ToolCommand)
def list_contexts(verbose: bool) -> None:
    """List the contexts, and which of them NSQ_CONTEXT chooses."""
    rows: list[list[Cell]] = []
    for path in sorted(context_path("x").parent.glob("*.toml")):
        found = _without_secrets(read_toml(path))
        addresses = [
            found.pop(flag, "") for flag in (each[0].lstrip("-").replace("-", "_") for each in ADDRESSES.values())
        ]
        mark = "*" if path.stem == os.environ.get("NSQ_CONTEXT") else ""
        rows.append([mark + path.stem, *(each or "-" for each in addresses), " ".join(sorted(found)) or "-"])
    print_table(("CONTEXT", "NSQD", "NSQD HTTP", "NSQLOOKUPD", "OTHERS"), rows, ("OTHERS", "NSQD HTTP"))


@context.command("show", cls=ToolCommand)
@_NAME
def show_context(name: str, verbose: bool) -> None:
    """Show a context without its secrets, and where it is kept."""
    path = context_path(name)
    click.echo(f"# {path}")
    for option, text in _without_secrets(read_toml(path)).items():
        click.echo(f"{option} = {text}")


def _without_secrets(found: dict[str, object]) -> dict[str, str]:
    return {name: _text(value) if name.replace("-", "_") in _SHOWN else "<hidden>" for name, value in found.items()}


def _text(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"//[^/@]*@", "//<hidden>@", text)


@context.command("remove", cls=ToolCommand)
@_NAME
def remove_context(name: str, verbose: bool) -> None:
    """Remove a context."""
    context_path(name).unlink()
    click.echo(f"context {name}: removed")
