"""``Plan``: the Readers and options of a supervisor, passed to the master and to workers as JSON.

The fields with a ``help`` are options of all commands that have a supervisor. ``flask nsq run`` and ``manage.py
nsq_run`` become a supervisor if one of these options is given; ``gnsq-like run`` makes its options from :func:`flags`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress, InvalidOption, NSQError, UsageError
from gnsq_like.options.text import read_size

#: Seconds without a heartbeat after which a process is replaced, without a handler_timeout: nsqd has closed its
#: connections by then, and delivers its messages to others (docs/internals 1.3).
DEFAULT_HEARTBEAT_TIMEOUT = 120.0
#: Seconds beyond handler_timeout, otherwise: a blocked hub cannot raise the handler's exception.
_HEARTBEAT_MARGIN = 5.0

_F = TypeVar("_F", bound=Callable[..., object])


class CannotLoad(NSQError):
    """Readers were not found, or could not be made; the text is one line."""


def _flag(default: object, help: str, metavar: str = "", least: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "metavar": metavar, "least": least})


class Flag(NamedTuple):
    """A field of Plan as a command-line option."""

    name: str
    #: int, float or str; bool for a flag without a value.
    kind: type
    default: Any
    #: The least value of a number.
    least: float | None
    metavar: str
    help: str


@dataclass(frozen=True)
class Plan:
    """The Readers to run, and options. Durations are seconds.

    :raises InvalidOption: for a wrong value
    """

    #: "module:function", called in each worker; returns its Readers, not started.
    loader: str
    #: Its arguments.
    arguments: tuple[str, ...] = ()
    #: Directory in which workers look for modules first; empty for none.
    app_dir: str = ""
    #: Whether the workers are monkey-patched by gevent.
    patch: bool = False
    #: Whether the workers count the Readers' messages for /metrics; not if the loader does that.
    measures: bool = False
    #: Level of the log of workers, in small letters; empty if the application configures its own log.
    log_level: str = ""
    #: Whether errors are logged with their traceback.
    verbose: bool = False

    processes: int = _flag(1, "Number of processes.", "N", 1)
    stop_timeout: float = _flag(30.0, "For running handlers when a process is stopped.", "SECONDS", 0)
    handler_timeout: float = _flag(
        0.0,
        "Requeue a message whose handler runs longer. A process whose handler cannot be interrupted is replaced.",
        "SECONDS",
        0,
    )
    heartbeat_timeout: float = _flag(
        0.0,
        "Replace a process whose hub is blocked for this time. Default: 5 s more than --handler-timeout, or "
        f"{DEFAULT_HEARTBEAT_TIMEOUT:g}.",
        "SECONDS",
        0,
    )
    max_messages: int = _flag(0, "Replace a process after this number of messages.", "N", 0)
    max_memory: str = _flag("", "Replace a process that uses more memory than this, such as 300M.", "SIZE")
    health: str = _flag("", "Address on which to serve /healthz and /metrics of all processes.", "HOST:PORT")
    log_json: bool = _flag(False, "Log JSON, one object a line.")

    def __post_init__(self) -> None:
        for flag in flags():
            value = getattr(self, flag.name)
            if flag.least is not None and not flag.least <= value < math.inf:
                raise InvalidOption(flag.name, value, f"it must be {flag.least:g} or more")
        try:
            read_size(self.max_memory or "1")
        except UsageError as exc:
            raise InvalidOption("max_memory", self.max_memory, str(exc)) from exc
        try:
            is_usable = not self.health or not parse_address(self.health, to_listen=True).path
        except InvalidAddress:
            is_usable = False
        if not is_usable:
            raise InvalidOption("health", self.health, "it must be host:port")

    @property
    def label(self) -> str:
        """The name of its processes in ``ps``."""
        return " ".join(self.arguments) or self.loader

    @property
    def silence(self) -> float:
        """Seconds without a heartbeat after which a process is replaced."""
        margin = self.handler_timeout + _HEARTBEAT_MARGIN if self.handler_timeout else DEFAULT_HEARTBEAT_TIMEOUT
        return self.heartbeat_timeout or margin

    @property
    def max_memory_bytes(self) -> int:
        """Memory above which a process is replaced; 0 for never."""
        return read_size(self.max_memory) if self.max_memory else 0

    def to_json(self) -> dict[str, object]:
        """For :meth:`from_json` in another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Plan:
        """The plan that ``to_json`` made this of."""
        return cls(**given | {"arguments": tuple(given["arguments"])})


def flags() -> Iterator[Flag]:
    """The options of commands."""
    for each in fields(Plan):
        if "help" in each.metadata:
            data = each.metadata
            yield Flag(each.name, type(each.default), each.default, data["least"], data["metavar"], data["help"])


#: Options that the commands also have for a single process.
_COMMON = frozenset({"stop_timeout", "health"})


def _own_flags() -> Iterator[tuple[str, Flag]]:
    """The flags with their spelling."""
    for flag in flags():
        if flag.name not in _COMMON:
            yield f"--{flag.name.replace('_', '-')}", flag


def number(kind: type, least: float | None) -> object:
    """click's type for a number of at least ``least``, with a readable name."""
    import click

    named = click.IntRange(int(least or 0)) if kind is int else click.FloatRange(least)
    named.name = "integer" if kind is int else "number"
    return named


def click_options(function: _F) -> _F:
    """A decorator that adds the options to a click command; one that is not given is None."""
    import click

    for spelling, flag in reversed(list(_own_flags())):
        if flag.kind is bool:
            option = click.option(spelling, is_flag=True, default=None, help=flag.help)
        else:
            kind = number(flag.kind, flag.least) if flag.kind in (int, float) else str
            option = click.option(spelling, type=kind, metavar=flag.metavar, help=flag.help)
        function = option(function)
    return function


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to an argparse parser; one that is not given is None."""
    for spelling, flag in _own_flags():
        if flag.kind is bool:
            parser.add_argument(spelling, action="store_true", default=None, help=flag.help)
        else:
            parser.add_argument(spelling, type=flag.kind, metavar=flag.metavar, help=flag.help)


def given_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The given options of a command that make it a supervisor."""
    return {flag.name: options[flag.name] for _, flag in _own_flags() if options.get(flag.name) is not None}


def make_plan(options: Mapping[str, object], loader: str, arguments: tuple[str, ...], **settings: object) -> Plan:
    """The plan for a command with these options. The workers are patched if this process is.

    :param loader: see ``Plan``, as are the arguments
    :param settings: further fields
    :raises InvalidOption: for a wrong value
    """
    from gevent import monkey

    patch = bool(monkey.is_module_patched("threading"))
    return Plan(loader=loader, arguments=arguments, patch=patch, **{**settings, **given_options(options)})
