"""Flags for every option of the NSQ client, and for the sources and destinations of messages.

:func:`consumes` and :func:`publishes` decorate a tool's function. It then gets ``reading`` or ``publishing``: arguments
for :class:`gnsq_like.tools.sources.Source` or for a Producer. A flag such as ``--snappy`` applies to both sides of a
tool that has two; ``--consumer-opt`` and ``--producer-opt`` apply to one, and override it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Container, Mapping
from typing import TypeVar

import click

from gnsq_like._version import __version__
from gnsq_like.cli.cluster_flags import address_option, chosen
from gnsq_like.cli.tool_options import Decorator, Function, Integer, ToolOption, bare_unit, option
from gnsq_like.errors import InvalidOption
from gnsq_like.options import ConnectionOptions, ProducerOptions, ReaderOptions
from gnsq_like.tools.client_options import is_duration, is_switch, parse_pairs, parse_value, text_options

_F = TypeVar("_F", bound=Callable[..., object])

#: Options of a Reader or Producer without a flag, because the tool has an option of its own for them.
_OWN = frozenset({"max_in_flight", "concurrency"})

#: The part of an option's text that is only for Python.
_PYTHON_ONLY = re.compile(r",? or a (callable|function)\b[^;.]*")

#: The key of the values of client flags while a command line is read.
_META = "gnsq_like.client_flags"


class ClientFlag(ToolOption):
    """The flag for an option of the NSQ client, which ``--help-client`` lists."""

    def __init__(self, name: str, kind: type[ConnectionOptions]) -> None:
        self._field = text_options(kind)[name]
        self._kind = kind
        super().__init__(
            [f"--{name.replace('_', '-')}"],
            hidden=True,
            expose_value=False,
            callback=self._keep,
            metavar="DURATION" if is_duration(self._field) else "VALUE",
            help=_PYTHON_ONLY.sub("", self._field.metadata["text"]),
        )

    @property
    def is_switch(self) -> bool:
        return is_switch(self._field)

    def _keep(self, ctx: click.Context, param: click.Parameter, text: str | None) -> None:
        if text is None:
            return
        name = self._field.name
        try:
            value = parse_value(self._kind, name, text, default_unit=bare_unit(self, ctx))
        except InvalidOption as exc:
            raise click.BadParameter(f"{exc.value!r}: {exc.reason}", ctx, param) from None
        ctx.meta.setdefault(_META, {})[name] = value


def _flag_names(kind: type[ConnectionOptions]) -> list[str]:
    return [name for name in text_options(kind) if name not in _OWN]


def all_flags() -> list[ClientFlag]:
    """The flags of all options of the client that tools have flags for, by name."""
    kinds = {name: kind for kind in (ProducerOptions, ReaderOptions) for name in _flag_names(kind)}
    return [ClientFlag(name, kinds[name]) for name in sorted(kinds)]


def client_flags(function: _F) -> _F:
    """A decorator: all of them."""
    function.__dict__.setdefault("__click_params__", []).extend(all_flags())
    return function


def print_client_help(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    """The callback of ``--help-client``."""
    if not given:
        return
    flags = sorted((each for each in ctx.command.params if isinstance(each, ClientFlag)), key=lambda each: each.opts[0])
    formatter = ctx.make_formatter()
    with formatter.section("Options of the NSQ client"):
        formatter.write_dl([(f"{flag.opts[0]} {flag.make_metavar(ctx)}".strip(), flag.help or "") for flag in flags])
    formatter.write_paragraph()
    formatter.write_text(
        "Other users of the machine can see command lines: set secrets in the environment, such as NSQ_AUTH_SECRET."
    )
    click.echo(formatter.getvalue().rstrip())
    ctx.exit()


def _add_flags(function: Function, kind: type[ConnectionOptions], without: Container[str] = ()) -> None:
    """Add the client flags that the function does not have yet."""
    params = function.__dict__.setdefault("__click_params__", [])
    known = {each.name for each in params if isinstance(each, ClientFlag)}
    params += [ClientFlag(name, kind) for name in _flag_names(kind) if name not in known and name not in without]


def _client_options(
    ctx: click.Context, kind: type[ConnectionOptions], pairs: tuple[str, ...], also: Mapping[str, object]
) -> dict[str, object]:
    """The keyword arguments of a Reader or Producer."""
    flags = ctx.meta.get(_META, {})
    given = {name: value for name, value in flags.items() if name in text_options(kind)}
    agent = f"{ctx.info_name}/{__version__} gnsq_like/{__version__}"
    return {"user_agent": agent, **also, **given, **parse_pairs(kind, pairs)}


def _address_options(function: Function, verb: str) -> Function:
    function = address_option("lookupd_http_addresses", f"nsqlookupd that knows the nsqds to {verb}")(function)
    return address_option("nsqd_tcp_addresses", f"nsqd to {verb}")(function)


def consumes(function: Function, in_flight: int = 200) -> Function:
    """A decorator: the tool reads topics. Its function gets ``reading``, arguments for a Source.

    :param in_flight: the default of ``--max-in-flight``
    """

    @functools.wraps(function)
    def command(
        *,
        nsqd_tcp_addresses: tuple[str, ...],
        lookupd_http_addresses: tuple[str, ...],
        max_in_flight: int,
        consumer_opt: tuple[str, ...],
        **values: object,
    ) -> object:
        ctx = click.get_current_context()
        given = {"nsqd_tcp_addresses": nsqd_tcp_addresses, "lookupd_http_addresses": lookupd_http_addresses}
        where = chosen(ctx, given, prefer="lookupd_http_addresses")
        options = _client_options(ctx, ReaderOptions, consumer_opt, {"max_in_flight": max_in_flight})
        return function(reading={**where, "options": options}, **values)

    for add in (
        option(
            "--consumer-opt", metavar="KEY,VALUE", multiple=True, help="Any option of the consumer; may be repeated."
        ),
        option("--max-in-flight", type=Integer(1), default=in_flight, help="Messages that may be unanswered at once."),
    ):
        command = add(command)
    consuming = _address_options(command, "read from")
    _add_flags(consuming, ReaderOptions)
    return consuming


def destination(function: Function) -> Function:
    """A decorator: the tool publishes to nsqds. Its function gets the addresses of one kind."""

    @functools.wraps(function)
    def command(
        *, nsqd_tcp_addresses: tuple[str, ...], lookupd_http_addresses: tuple[str, ...], **values: object
    ) -> object:
        ctx = click.get_current_context()
        given = {"nsqd_tcp_addresses": nsqd_tcp_addresses, "lookupd_http_addresses": lookupd_http_addresses}
        return function(**chosen(ctx, given, prefer="nsqd_tcp_addresses"), **values)

    return _address_options(command, "publish to")


def publishes(function: Function) -> Function:
    """A decorator: the tool's function gets ``publishing``, the options of a Producer, but no addresses."""

    @functools.wraps(function)
    def command(*, producer_opt: tuple[str, ...], **values: object) -> object:
        ctx = click.get_current_context()
        return function(publishing=_client_options(ctx, ProducerOptions, producer_opt, {}), **values)

    command = option(
        "--producer-opt",
        metavar="KEY,VALUE",
        multiple=True,
        help="Any option of the producer; may be repeated.",
    )(command)
    _add_flags(command, ProducerOptions)
    return command


def connects(function: Function) -> Function:
    """A decorator: the tool finds nsqds over HTTP, and connects to them. Its function gets ``connecting``.

    Those are options of a Connection, for Readers and Producers; but no sample_rate, which has nsqd drop messages.
    """

    @functools.wraps(function)
    def command(**values: object) -> object:
        ctx = click.get_current_context()
        return function(connecting=_client_options(ctx, ConnectionOptions, (), {}), **values)

    _add_flags(command, ConnectionOptions, {"sample_rate"})
    return command


#: A decorator for tools that read several topics.
topics = option(
    "--topic", "topics", metavar="TOPIC", multiple=True, listed=True, word=True, help="Topic; may be repeated."
)


def channel(default: str | None) -> Decorator:
    """A decorator: ``--channel`` with the tool's default."""
    return option("--channel", default=default, help="Channel.")
