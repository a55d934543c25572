"""The command of a tool: reads its arguments as Go's utilities do, and fails with one line.

``-topic=x``, ``--gzip`` and ``--gzip=false`` are accepted, so a unit file for NSQ's utilities needs only one changed
word.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

import click

from gnsq_like._version import __version__
from gnsq_like.cli.client_flags import ClientFlag, print_client_help
from gnsq_like.cli.config_file import read_config
from gnsq_like.cli.exits import StdoutFailed
from gnsq_like.cli.tool_options import ENVIRONMENT_PREFIX, ToolOption, printable
from gnsq_like.errors import InvalidOption, NSQError, UsageError

#: A flag as Go's utilities take it, which click would read as several of one letter.
_ONE_DASH = re.compile(r"-[a-z][a-z0-9-]+(?:=.*)?", re.DOTALL)

_EPILOG = (
    "Each option may also be set in the environment (NSQ_TOPIC for --topic), or in a file (--config). "
    "Exit status: 0 done, or stopped by a signal; 1 failed; 2 wrong usage."
)


class ToolCommand(click.Command):
    """A tool."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("epilog", _EPILOG)
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(
                ["--config"],
                is_eager=True,
                expose_value=False,
                metavar="PATH",
                envvar=f"{ENVIRONMENT_PREFIX}CONFIG",
                callback=read_config,
                help="TOML file of options.",
            ),
            click.Option(["-v", "--verbose"], is_flag=True, help="Log more, and show the traceback of an error."),
            _information("--version", _print_version, "Print the version."),
        ]
        if any(isinstance(param, ClientFlag) for param in self.params):
            listing = "List the options of the NSQ client: TLS, compression, backoff and others."
            self.params.append(_information("--help-client", print_client_help, listing))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, as_click_wants(args, self.params))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        options, *arguments = super().collect_usage_pieces(ctx)
        words = [f"[{(each.metavar or each.opts[-1].lstrip('-')).upper()}]" for each in _words(self.params)]
        repeated = ["..." if each.multiple else "" for each in _words(self.params)]
        return [options, *map("".join, zip(words, repeated, strict=True)), *arguments]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as exc:
            _show_traceback(ctx)
            raise click.UsageError(one_line(exc), ctx) from exc
        except StdoutFailed:
            raise
        except (NSQError, OSError) as exc:
            _show_traceback(ctx)
            raise click.ClickException(one_line(exc)) from exc


def _information(name: str, callback: object, text: str) -> click.Option:
    return click.Option([name], is_flag=True, is_eager=True, expose_value=False, callback=callback, help=text)


def _print_version(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        path = ctx.command_path
        click.echo(f"{path if path.startswith('gnsq-like') else f'gnsq-like {path}'} {__version__}")
        ctx.exit()


def one_line(error: BaseException) -> str:
    """An error as one line for a user, in the words of the command line."""
    if isinstance(error, InvalidOption):
        return f"--{error.option.replace('_', '-')}={error.value}: {error.reason}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return printable(" ".join(str(error).split())) or type(error).__name__


def _show_traceback(ctx: click.Context) -> None:
    """Print the traceback of the current exception, with ``--verbose``."""
    if ctx.params.get("verbose"):
        import traceback

        traceback.print_exc()


def _is_short(name: str, known: Container[str]) -> bool:
    """Whether click reads a word with one dash correctly: one flag with its number, or several without values."""
    return (name[:2] in known and name[2:].isdigit()) or all(f"-{letter}" in known for letter in name[1:])


def _words(params: list[click.Parameter]) -> list[ToolOption]:
    return [each for each in params if isinstance(each, ToolOption) and each.word]


def as_click_wants(args: list[str], params: list[click.Parameter]) -> list[str]:
    """The arguments with two dashes before each long flag, and a value for each switch.

    Words become the values of the options that take them, unless those are given by their flags: "tail clicks".
    """
    known = {name: param for param in params if isinstance(param, click.Option) for name in param.opts}
    flags: list[str] = []
    words: list[str] = []
    given: set[click.Parameter | None] = set()
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            words += rest
            break
        if not arg.startswith("-") or arg == "-":
            words.append(arg)
            continue
        name, equals, value = arg.partition("=")
        if _ONE_DASH.fullmatch(arg) and (f"-{name}" in known or not _is_short(name, known)):
            name, arg = f"-{name}", f"-{arg}"
        param = known.get(name) or known.get(name[:2])
        given.add(param)
        if name not in known or (param is not None and param.is_flag and not equals):
            flags.append(arg)
        elif isinstance(param, ToolOption) and param.is_switch and not equals:
            flags += [name, "true"]
        elif equals:
            flags += [arg] if name.startswith("--") else [name, value]
        elif rest:
            flags += [arg, rest.pop(0)]
        else:
            return [*flags, arg]  # its value is missing, as click will say
    for each in _words(params):
        if each not in given:
            taken = words if each.multiple else words[:1]
            flags += [part for word in taken for part in (each.opts[-1], word)]
            words = words[len(taken) :]
    return [*flags, "--", *words]
