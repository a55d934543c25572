"""The kinds of options that tools have. A value comes from the command line, else from the environment (``NSQ_TOPIC``
for ``--topic``), else from the file of ``--config`` (``config_file``), else it is the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from gnsq_like.errors import UsageError
from gnsq_like.options.text import parse_duration

_F = TypeVar("_F", bound=Callable[..., object])

#: A function that becomes a command; its arguments are the values of the options that decorators add.
Function = Callable[..., object]


class Decorator(Protocol):
    """Adds an option to a function, which is returned unchanged."""

    def __call__(self, function: _F, /) -> _F: ...


#: An address without a port.
_NO_PORT = re.compile(r"[^\s:/@,\[\]]+|\[[^\]]*\]")

#: The prefix of each option's name in the environment, as for Flask and Django.
ENVIRONMENT_PREFIX = "NSQ_"


def bare_unit(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """The unit of a duration without one: seconds in the environment, as for Flask and Django; elsewhere none."""
    source = ctx.get_parameter_source(param.name) if ctx and param and param.name else None
    return "s" if source is ParameterSource.ENVIRONMENT else ""


class _Kind(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.3
    """The base of our own types of options."""


class Duration(_Kind):
    """Seconds, written as "250ms" or "1h30m".

    :param above_zero: whether 0 is invalid
    """

    name = "duration"

    def __init__(self, *, above_zero: bool = False) -> None:
        self._above_zero = above_zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value), default_unit=bare_unit(param, ctx))
        except UsageError as exc:
            self.fail(f"{value!r}: {exc}", param, ctx)
        if self._above_zero and not seconds:
            self.fail(f"{value!r}: it must be above 0", param, ctx)
        return seconds


class Regex(_Kind):
    """A regular expression; None if it is empty.

    :param of_bytes: whether it is for bytes
    """

    name = "regex"

    def __init__(self, *, of_bytes: bool = False) -> None:
        self._of_bytes = of_bytes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[Any] | None:
        if not value:
            return None
        try:
            return re.compile(value.encode() if self._of_bytes else value)
        except re.error as exc:
            self.fail(f"{value!r}: {exc}", param, ctx)


class Integer(click.IntRange):
    """An integer in a range, named so in errors; click's own is "an integer range"."""

    name = "integer"


class Number(click.FloatRange):
    """Likewise a number."""

    name = "number"


class Address(_Kind):
    """An address; a port that is left out is the one that NSQ's daemons have unless told otherwise."""

    name = "address"

    def __init__(self, port: int) -> None:
        self._port = port

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return f"{value}:{self._port}" if _NO_PORT.fullmatch(str(value)) else str(value)


class ToolOption(click.Option):
    """An option of a tool.

    :param listed: for one that may be repeated: whether one variable of the environment holds several values,
        separated by commas or blanks; otherwise there is one on each line
    :param word: whether a word of the command line that belongs to no flag may be its value: "tail clicks"
    """

    def __init__(self, *args: Any, listed: bool = False, word: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listed = listed
        self.word = word
        # The name of the parameter is plural for one that may be repeated, as it is for Flask and Django.
        self.envvar = [f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in self.long_names]

    @property
    def long_names(self) -> list[str]:
        """Its names in a file, and in lower case those in the environment: "nsqd_tcp_address"."""
        flag = max(self.opts, key=len)  # --lookupd is short for --lookupd-http-address
        return list(dict.fromkeys([flag.lstrip("-").replace("-", "_"), self.name or ""]))

    @property
    def is_switch(self) -> bool:
        """Whether its name alone means true."""
        return self.type is click.BOOL

    def make_metavar(self, ctx: click.Context) -> str:
        return "" if self.is_switch else super().make_metavar(ctx)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        text = self.resolve_envvar_value(ctx)
        if text is None or not self.multiple:
            return text
        separator = r"[\s,]+" if self._listed else r"\n+"
        return tuple(filter(None, re.split(separator, text.strip())))


def unescaped(text: str) -> str:
    """A text in which a backslash may begin an escape, as in C; bytes that are not UTF-8 are surrogates.

    :raises click.BadParameter: for an unknown escape
    """
    if "\\" not in text:
        return text
    try:
        found = os.fsencode(text).decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        raise click.BadParameter(f"{text!r} has an unknown escape") from None
    return found.decode(errors="surrogateescape")


def printable(text: str, kept: str = "") -> str:
    """A text with "?" in place of the characters that control a terminal.

    :param kept: those that stay
    """
    return text if text.isprintable() else "".join(each if each.isprintable() or each in kept else "?" for each in text)


def option(*names: str, **arguments: Any) -> Decorator:
    """A decorator: an option of a tool; arguments as for click.option."""
    arguments.setdefault("show_default", bool(arguments.get("default")))
    return click.option(*names, cls=ToolOption, **arguments)


def switch(*names: str, **arguments: Any) -> Decorator:
    """A decorator: an option that is false unless it is given (``--gzip``, ``--gzip=true``)."""
    return click.option(*names, cls=ToolOption, type=click.BOOL, default=False, **arguments)
