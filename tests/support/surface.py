"""The public surface as text, a line for each name: make generate writes it to public.txt.

Names in ``__all__`` and in docs/reference with their signatures and members, Spark's options, the command's flags, and
metrics. A change of it is seen in review, and belongs into CHANGES.rst. The rest of what is public is in
docs/stability.rst.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from django.conf import settings

from gnsq_like._version import __version__
from gnsq_like.cli.app import COMMANDS, app
from tests.support.pages import PUBLIC_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "tests" / "docs" / "public.txt"


class _Unshown:
    """A default that is made at run time."""

    def __repr__(self) -> str:
        return "..."


_UNSHOWN = _Unshown()


#: A signature of more parameters has a line for each, so that a change is one line.
_MOST_IN_LINE = 8


def signature_of(name: str, function: Any) -> Iterator[str]:
    """Names, kinds and defaults of the parameters; not their types, which mypy knows in several spellings."""
    try:
        found = inspect.signature(function)
    except ValueError:  # a TypedDict, and what is written in C
        yield name
        return
    shown = [
        each.replace(annotation=each.empty, default=each.default if is_plain(each.default) else _UNSHOWN)
        for each in found.parameters.values()
        if each.name != "self" and not (each.name.startswith("_") and each.kind is each.KEYWORD_ONLY)
    ]
    if len(shown) <= _MOST_IN_LINE:
        yield name + str(inspect.Signature(shown))
    else:
        yield from (f"{name} {each}" for each in shown)


def is_plain(value: object) -> bool:
    """Whether its text is the same on every machine."""
    return value is inspect.Parameter.empty or isinstance(value, bool | int | float | str | bytes | None | tuple)


def members_of(path: str, cls: type) -> Iterator[str]:
    """The public methods and properties that a class has from this package."""
    for name, member in inspect.getmembers_static(cls):
        owner = next(base for base in cls.__mro__ if name in vars(base)) if name in dir(cls) else cls
        if name.startswith("_") or not owner.__module__.startswith("gnsq_like"):
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(function):
            yield from signature_of(f"{path}.{name}", function)
        else:
            yield f"{path}.{name}"


def names() -> Iterator[str]:
    """The names that users import."""
    packages = [*PUBLIC_PACKAGES, "gnsq_like.errors", "gnsq_like.options"]
    for package in sorted(packages):
        module = import_module(package)
        for name in sorted(getattr(module, "__all__", [each for each in dir(module) if not each.startswith("_")])):
            yield from name_of(f"{package}.{name}", getattr(module, name))
    for path in sorted(documented(r"auto(?:class|function)")):
        package, _, name = path.rpartition(".")
        if package not in packages:
            yield from name_of(path, getattr(import_module(package), name))


def name_of(path: str, value: Any) -> Iterator[str]:
    """A public name, with its signature and members."""
    if inspect.isclass(value):
        yield from signature_of(path, value)
        yield from members_of(path, value)
    elif inspect.isfunction(value):
        yield from signature_of(path, value)
    elif inspect.ismodule(value) or getattr(value, "__module__", "gnsq_like").startswith("gnsq_like"):
        yield path


def documented(directive: str) -> set[str]:
    """What a directive of the reference's pages documents."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.rst"))
    return set(re.findall(rf"^\.\. {directive}:: (\S+)", pages, re.MULTILINE))


def flags(command: click.Command, path: str) -> Iterator[str]:
    """The commands and their flags."""
    yield path
    for param in sorted(command.params, key=lambda param: param.opts):
        shown = "/".join((*param.opts, *param.secondary_opts))
        yield f"{path} {shown}" if isinstance(param, click.Option) else f"{path} {param.human_readable_name}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            if (found := command.get_command(context, name)) is not None:
                yield from flags(found, f"{path} {name}")


def from_code() -> Any:
    """What the site's pages have from the code."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        return import_module("from_code")
    finally:
        sys.path.pop(0)


def options() -> Iterator[str]:
    """The options of Spark's source and sink, with their defaults; those of others are arguments."""
    for target in sorted(each for each in documented("options") if each.startswith("gnsq_like.spark")):
        for name, facts, _ in from_code().settings(target):
            yield f"{target.partition(':')[2]} {name}={facts['default']}"


def metrics() -> Iterator[str]:
    """The metrics with their labels."""
    for name, kind, _, labels in from_code().metrics():
        yield f"{name} {kind} {labels}".rstrip()


def surface() -> str:
    """The text of the file."""
    assert COMMANDS
    if not settings.configured:  # modules of contrib.django ask for them
        settings.configure()
    parts = [[*names()], [*options()], [*flags(app, "gnsq-like")], sorted(metrics())]
    text = "\n\n".join("\n".join(dict.fromkeys(part)) for part in parts) + "\n"
    return text.replace(f"/{__version__}'", "/VERSION'")


if __name__ == "__main__":
    PATH.write_text(surface())
