"""The TOML file of ``--config``: its values become the defaults of a tool's options.

Names are those of the flags, with ``_`` or ``-``. Values at the top apply to all tools, those of a table to the tool of
that name with all of its commands::

    lookupd_http_address = ["10.0.0.1:4161", "10.0.0.2:4161"]

    [to-file]
    output_dir = "/var/log/nsq"
    rotate_interval = "1h"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import click

from gnsq_like.cli.client_flags import all_flags
from gnsq_like.cli.cluster_flags import http_options
from gnsq_like.cli.tool_options import ToolOption
from gnsq_like.errors import did_you_mean

#: Names at the top of a file that are ignored by tools without such an option; other unknown names are errors.
COMMON_NAMES = frozenset(
    {
        "topic",
        "channel",
        "nsqd_tcp_address",
        "nsqd_http_address",
        "lookupd_http_address",
        "max_in_flight",
        *(each.name for each in click.command()(http_options(lambda: None)).params),
        "consumer_opt",
        "producer_opt",
        *(str(flag.name) for flag in all_flags()),
    }
)


def read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """The callback of ``--config``."""
    if path is not None:
        ctx.default_map = _defaults(ctx, path, read_toml(path, ctx))


def read_toml(path: str | Path, ctx: click.Context | None = None) -> dict[str, object]:
    """The content of a TOML file; raises UsageError."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as exc:
        raise click.UsageError(f"cannot read {path}: {exc.strerror or exc}", ctx) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{path} is not TOML: {exc}", ctx) from None


def _defaults(ctx: click.Context, path: str, found: Mapping[str, object]) -> dict[str, object]:
    """The values for this tool by parameter, as they would be written on the command line."""
    tables = {name: value for name, value in found.items() if isinstance(value, dict)}
    commands = _commands(ctx)
    for name in tables:
        if name not in commands:
            raise click.UsageError(f"{path}: there is no tool {name}{did_you_mean(name, commands)}", ctx)
    own = tables.get(_tool(ctx).info_name or "", {})
    known = {name: param for param in ctx.command.params if isinstance(param, ToolOption) for name in param.long_names}
    defaults: dict[str, object] = {}
    for table in (found, own):
        for written, value in table.items():
            name = written.replace("-", "_")
            if name in known:
                param = known[name]
                defaults[param.name or ""] = _as_text(value, param, f"{path}: {written}", ctx)
            elif table is own and name in _names_of_siblings(ctx):
                continue
            elif table is own or not (name in COMMON_NAMES or written in tables):
                hint = did_you_mean(name, known)
                what = "option" if table is own else "option of all tools"
                raise click.UsageError(f"{path}: there is no {what} {written}{hint}", ctx)
    return defaults


def _tool(ctx: click.Context) -> click.Context:
    """The tool: for ``gnsq-like topic list`` that is ``topic``."""
    while ctx.parent is not None and ctx.parent.parent is not None:
        ctx = ctx.parent
    return ctx


def _names_of_siblings(ctx: click.Context) -> set[str]:
    """Names of options of the other commands of a tool that has several."""
    tool = _tool(ctx).command
    siblings = tool.commands.values() if isinstance(tool, click.Group) else ()
    params = [param for each in siblings for param in each.params if isinstance(param, ToolOption)]
    return {name for param in params for name in param.long_names}


def _commands(ctx: click.Context) -> list[str]:
    tool = _tool(ctx)
    group = tool.parent.command if tool.parent else None
    return group.list_commands(ctx) if isinstance(group, click.Group) else [tool.info_name or ""]


def _as_text(value: object, param: click.Option, where: str, ctx: click.Context) -> object:
    if param.multiple:
        return tuple(str(each) for each in (value if isinstance(value, list) else [value]))
    if isinstance(value, list | dict):
        raise click.UsageError(f"{where} must be one value", ctx)
    return str(value).lower() if isinstance(value, bool) else str(value)
