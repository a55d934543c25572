"""Loads Readers from the user's code, by names: "shop.readers", "shop.readers:archive" or "shop.readers:make()"."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import did_you_mean
from gnsq_like.workers.plan import CannotLoad

if TYPE_CHECKING:
    from gnsq_like import Reader


def load(*targets: str) -> list[Reader]:
    """The Readers of all targets, each once; not started.

    A target is ``module``: all Readers in its global variables, alone or in lists and tuples; ``module:name``: one
    Reader, or an iterable of them; or ``module:function()``: what the function returns. Modules are imported.

    :raises CannotLoad: if the module or the Readers do not exist
    """
    readers: list[Reader] = []
    for target in targets:
        readers += [reader for reader in _readers_of(target) if reader not in readers]
    for reader in readers:
        name = f"the reader of {reader.topic}/{reader.channel}"
        if reader.handler is None:
            raise CannotLoad(f"{name} has no handler")
        if reader.stats()["state"] != "new":
            raise CannotLoad(f'{name} was started by its module; start it under if __name__ == "__main__": only')
    return readers


def _readers_of(target: str) -> list[Reader]:
    path, colon, name = target.partition(":")
    if "/" in path or path.endswith(".py"):
        likely = path.removesuffix(".py").strip("./").replace("/", ".")
        raise CannotLoad(f"{path} is a file: give a module's name, such as {likely}")
    if colon and not name.removesuffix("()"):
        raise CannotLoad(f"{target!r}: no name follows the colon; write {path} for all Readers of the module")
    module = _imported(path)
    if not colon:
        found = _readers_in(list(vars(module).values()))
        if not found:
            raise CannotLoad(f"module {path} has no Reader in a global variable; name a function: {path}:function()")
        return found
    name, is_call = name.removesuffix("()"), name.endswith("()")
    value = _attribute(module, name)
    if is_call:
        try:
            value = value()
            if isinstance(value, Iterable):
                value = list(value)  # runs a generator
        except (Exception, SystemExit) as exc:
            raise CannotLoad(f"{target} failed: {_one_line(exc)}") from exc
    elif callable(value) and not _readers_in([value]):
        raise CannotLoad(f"{target} is a function: write {target}() for the Readers that it returns")
    found = _readers_in([value])
    if not found:
        raise CannotLoad(f"{target} {'returned' if is_call else 'is'} no Reader, but {type(value).__name__}")
    return found


def _readers_in(values: Iterable[object]) -> list[Reader]:
    """The Readers among the values, and in collections that contain only Readers."""
    from gnsq_like import Reader  # not at the top: the master looks for changes only

    found: list[Reader] = []
    for value in values:
        if isinstance(value, Reader):
            found.append(value)
        elif isinstance(value, list | tuple | set | frozenset) and all(isinstance(each, Reader) for each in value):
            found += value
    return list(dict.fromkeys(found))


def _imported(path: str) -> ModuleType:
    if not all(part.isidentifier() for part in path.split(".")):
        raise CannotLoad(f"{path!r} is no module's name")
    try:
        return import_module(path)
    except (Exception, SystemExit) as exc:
        raise CannotLoad(f"cannot import {path}: {_one_line(exc)}") from exc


def _attribute(module: ModuleType, name: str) -> Any:
    value: object = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            hint = did_you_mean(name, [each for each in vars(module) if not each.startswith("_")])
            raise CannotLoad(f"module {module.__name__} has no {name}{hint}") from None
    return value


def _one_line(exc: BaseException) -> str:
    """The error, with its place in the user's code."""
    text = f"{type(exc).__name__}: {exc}".partition("\n")[0]
    if isinstance(exc, SyntaxError):
        return text  # says where
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not _is_machinery(frame.filename)]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


def _is_machinery(filename: str) -> bool:
    return filename.startswith("<frozen") or filename in (__file__, import_module.__code__.co_filename)
