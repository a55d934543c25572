"""NSQ's config files: TOML, with the names of docs/internals 7, for ``--config``.

The values in the file become the defaults of the flags, so the command line overrides them. Durations are
strings such as "250ms"; bare integers mean milliseconds.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import click

from gnsq_like.cli.tool_file import read_toml
from gnsq_like.errors import did_you_mean
from gnsq_like.server.options import config_name

#: Options of NSQ's daemons that ours accept, in files and on the command line, and ignore.
WITHOUT_EFFECT = frozenset(
    {
        "verbose",
        "worker_id",
        "queue_scan_worker_pool_max",
        "queue_scan_selection_count",
    }
)


def defaults_from(path: str, options: type, ignored: frozenset[str] = WITHOUT_EFFECT) -> dict[str, Any]:
    """The values in a config file, by the names of ``options``' fields, as text for the flags' own parsers.

    :param options: the options class of the daemon
    :param ignored: names without an effect
    :raises click.UsageError: if the file cannot be read, is not TOML, or names an unknown option
    """
    known = {config_name(field.name): field for field in fields(options)}
    defaults: dict[str, Any] = {}
    for name, value in read_toml(path).items():
        field = known.get(name)
        if field is not None:
            defaults[field.name] = _as_flag(field.default, value, f"{path}: {name}")
        elif name not in ignored:
            raise click.UsageError(f"{path}: there is no option {name}{did_you_mean(name, known)}")
    return defaults


def _as_flag(default: Any, value: Any, where: str) -> Any:
    """A value as it would be written on the command line."""
    if isinstance(value, dict) and default is MISSING:  # a table of names
        return [f"{name}={','.join(each) if isinstance(each, list) else each}" for name, each in value.items()]
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise click.UsageError(f"{where} must be a list")
        return [str(each) for each in value]
    if isinstance(value, list | dict):
        raise click.UsageError(f"{where} must be one value")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(default, float) and isinstance(value, int):
        return f"{value}ms"
    return str(value)
