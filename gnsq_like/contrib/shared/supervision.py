"""The options by which ``flask nsq run`` and ``nsq_run`` become a supervisor of several processes.

They are made from the fields of the supervisor's ``Plan``; those that the commands have anyway are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, TypeVar

from gnsq_like.tools.supervisor import Plan
from gnsq_like.tools.supervisor.plan import Flag, flags

_F = TypeVar("_F", bound=Callable[..., object])

#: What the commands have for one process, too.
_COMMON = frozenset({"stop_timeout", "health"})


def _own_flags(but: Container[str]) -> Iterator[tuple[str, Flag]]:
    """The flags with their spelling."""
    for flag in flags():
        if flag.name not in _COMMON and flag.name not in but:
            yield f"--{flag.name.replace('_', '-')}", flag


def number(kind: type, least: float | None) -> Any:
    """click's type for a number that is not below ``least``, named as people call it."""
    import click

    named = click.IntRange(int(least or 0)) if kind is int else click.FloatRange(least)
    named.name = "integer" if kind is int else "number"
    return named


def click_options(function: _F) -> _F:
    """A decorator that adds the options to a click command; one that is not given is None."""
    import click

    for spelling, flag in reversed(list(_own_flags(()))):
        if flag.kind is bool:
            option = click.option(spelling, is_flag=True, default=None, help=flag.help)
        else:
            kind = number(flag.kind, flag.least) if flag.kind in (int, float) else str
            option = click.option(spelling, type=kind, metavar=flag.metavar, help=flag.help)
        function = option(function)
    return function


def add_arguments(parser: argparse.ArgumentParser, but: Container[str] = ()) -> None:
    """Add the options to an argparse parser; one that is not given is None.

    :param but: fields to leave out
    """
    for spelling, flag in _own_flags(but):
        if flag.kind is bool:
            parser.add_argument(spelling, action="store_true", default=None, help=flag.help)
        else:
            parser.add_argument(spelling, type=flag.kind, metavar=flag.metavar, help=flag.help)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's options that make it a supervisor."""
    return {flag.name: options[flag.name] for _, flag in _own_flags(()) if options.get(flag.name) is not None}


def make_plan(options: Mapping[str, Any], loader: str, arguments: tuple[str, ...], **settings: Any) -> Plan:
    """The plan for a command with these options. The workers are patched if this process is.

    :param loader: see ``Plan``, as are the arguments
    :param settings: further fields
    :raises InvalidOption: for a wrong value
    """
    from gevent import monkey

    patch = bool(monkey.is_module_patched("threading"))
    return Plan(loader=loader, arguments=arguments, patch=patch, **{**settings, **given_options(options)})
