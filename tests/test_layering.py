"""The house rules of docs/internals/architecture.rst: who imports what, and what importing must not do.

ROOMS is read from that section's table. A module is looked up by its own dotted name, then its
parents'; a new module that fits no line makes a test fail until it gets one. Imports inside functions and under
TYPE_CHECKING count as knowing the other room, for cycles too.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import page

if TYPE_CHECKING:  # names that are loaded at first use: make lint fails if type checkers accept any
    from gnsq_like import Nonesuch as N0  # type: ignore[attr-defined]  # noqa: F401
    from gnsq_like.admin import Nonesuch as N1  # type: ignore[attr-defined]  # noqa: F401
    from gnsq_like.contrib.django.tasks import Nonesuch as N2  # type: ignore[attr-defined]  # noqa: F401
    from gnsq_like.contrib.flask import Nonesuch as N3  # type: ignore[attr-defined]  # noqa: F401
    from gnsq_like.server import Nonesuch as N4  # type: ignore[attr-defined]  # noqa: F401
    from gnsq_like.spark.pipeline import Nonesuch as N5  # type: ignore[attr-defined]  # noqa: F401
    from gnsq_like.testing import Nonesuch as N6  # type: ignore[attr-defined]  # noqa: F401

#: `from gnsq_like import Reader` imports this; it stands for all public names.
FACADE = "(public names)"

_PAGE = page("internals/architecture.rst")


@dataclass(frozen=True)
class Room:
    """What the modules of a room may import, by dotted name below gnsq_like or by other packages' names."""

    never: frozenset[str]
    never_others: frozenset[str]
    #: None: whatever is not in ``never``; else the only modules of ours, beside the room's own.
    only: frozenset[str] | None


def _group(title: str) -> frozenset[str]:
    """The names of a group that the page defines before the table, as "Leaves"."""
    found = re.search(rf"\*{title}\* (?:is|are) (.*?)\.(?:\n| [*A-Z])", _PAGE, re.DOTALL)
    assert found, title
    return frozenset(name.strip("`") for name in re.split(r",\s+|\s+and\s+", found[1]))


_GROUPS = {"leaves": _group("Leaves"), "outer rooms": _group("Outer rooms"), "I/O": _group("I/O")}


def _names(cell: str) -> frozenset[str]:
    parts = filter(None, (part.strip() for part in cell.split(",")))
    return frozenset(name for part in parts for name in _GROUPS.get(part, {part.strip("`")}))


def _rooms() -> dict[str, Room]:
    rule = re.search(r"^=+(?: +=+){2}$", _PAGE, re.MULTILINE)
    assert rule
    starts = [match.start() for match in re.finditer("=+", rule[0])]
    rows: list[list[str]] = []
    for line in filter(None, _PAGE[rule.end() :].split(rule[0])[1].splitlines()):
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
    rooms: dict[str, Room] = {}
    for room, imports, others in rows:
        kind, _, listed = imports.partition(" ")
        only = {"any": None, "not": None, "none": frozenset[str](), "only": _names(listed)}[kind]
        never = _names(listed) if kind == "not" else frozenset[str]()
        rooms |= dict.fromkeys(_names(room), Room(never, _names(others), only))
    return rooms


ROOMS = _rooms()


PACKAGE = "gnsq_like"
TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent / PACKAGE

#: What must be there for these tests to mean anything; the extras' rooms may lack their packages.
BUILT = set(ROOMS) - {"admin", "contrib", "spark"}


@dataclass(frozen=True)
class Import:
    """One imported thing: its full dotted name, and whether it is for type checkers only."""

    target: str
    line: int
    typing_only: bool


def found_modules() -> dict[str, Path]:
    """Every module by its full name; a directory that is no package holds what is installed elsewhere."""
    modules = {}
    for path in sorted(path for path in ROOT.rglob("*.py") if (path.parent / "__init__.py").exists()):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = found_modules()


def imports_of(module: str, source: str, *, is_package: bool) -> Iterator[Import]:
    """All imports in a module's source, relative ones resolved, wherever they stand."""

    def visit(node: ast.AST, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - 1 if is_package else node.level
                parents = module.split(".")
                base = ".".join([*parents[: len(parents) - up], *filter(None, [base])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, typing_only)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                yield from visit(statement, True)
            for statement in node.orelse:
                yield from visit(statement, typing_only)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, typing_only)

    return visit(ast.parse(source), False)


@cache
def imports_in(module: str) -> tuple[Import, ...]:
    """Those of a module of the package."""
    path = MODULES[module]
    return tuple(imports_of(module, path.read_text(), is_package=path.name == "__init__.py"))


def module_of(target: str) -> str:
    """The longest of our modules that an imported name leads to: a name in a module is that module."""
    while target not in MODULES and "." in target:
        target = target.rpartition(".")[0]
    return target


def below(module: str) -> str:
    """A module's name below the package; the package itself is the public names."""
    return module.removeprefix(PACKAGE).removeprefix(".") or FACADE


def room_of(module: str) -> str | None:
    name = below(module)
    while name not in ROOMS:
        if "." not in name:
            return None
        name = name.rpartition(".")[0]
    return name


def is_within(name: str, rooms: frozenset[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def violations(module: str, imports: Iterable[Import]) -> list[str]:
    own = room_of(module)
    assert own is not None, f"{module} is in no room of the table of rooms"
    rule = ROOMS[own]
    wrong = []
    for item in imports:
        if item.target.partition(".")[0] != PACKAGE:
            allowed = not is_within(item.target, rule.never_others)
        else:
            name = below(module_of(item.target))
            listed = rule.only is None or is_within(name, rule.only)
            allowed = is_within(name, frozenset({own})) or (listed and not is_within(name, rule.never))
        if not allowed:
            wrong.append(f"line {item.line}: {own} must not import {item.target}")
    return wrong


def test_each_module_imports_only_what_its_room_may() -> None:
    wrong = {module: violations(module, imports_in(module)) for module in MODULES}
    assert {module: lines for module, lines in wrong.items() if lines} == {}


def _drawn() -> set[str]:
    """The rooms of the page's tree, by path: a directory ends with a slash."""
    tree = _PAGE[_PAGE.index("    gnsq_like/\n") :].partition("\n\n")[0]
    drawn: set[str] = set()
    above = ""
    for line in tree.splitlines()[1:]:
        indent, names = re.fullmatch(r"( +)([^\s,]+(?:, [^\s,]+)*) .*", line).groups()  # type: ignore[union-attr]
        below_it = above if len(indent) > 6 else ""
        drawn |= {f"{below_it}{name}" for name in names.split(", ")}
        if len(indent) == 6:
            above = names
    return drawn


def test_the_tree_of_rooms_is_what_there_is() -> None:
    """All rooms and their parts; files, where they are rooms of their own."""
    directories = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("__init__.py")} - {"."}
    rooms = {f"{name}/" for name in directories if name.count("/") < 2}
    files = {path.stem for path in ROOT.glob("*.py")}
    drawn = _drawn()
    assert {name for name in drawn if name.endswith("/")} == rooms
    assert {name for name in drawn if "/" not in name} == files
    for room in {name for name in ROOMS if name != FACADE}:
        assert (ROOT / room.replace(".", "/")).is_dir() or (ROOT / f"{room.replace('.', '/')}.py").is_file(), room


def test_only_public_names_come_from_the_package() -> None:
    import gnsq_like

    for module in MODULES:
        for item in imports_in(module):
            parent, _, name = item.target.rpartition(".")
            if parent == PACKAGE and item.target not in MODULES:
                assert name in gnsq_like.__all__, f"{module}, line {item.line}"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gnsq_like.wire.frames", "import gevent"),
        ("gnsq_like.wire.frames", "from gevent.event import Event"),
        ("gnsq_like.wire.frames", "def f():\n    import time"),
        ("gnsq_like.wire.frames", "from .. import connection"),
        ("gnsq_like.wire.frames", "from gnsq_like import Reader"),
        ("gnsq_like.policy.places", "from ..errors import NSQError"),
        ("gnsq_like.errors", "from gnsq_like.wire import frames"),
        ("gnsq_like.connection.connection", "if TYPE_CHECKING:\n    from gnsq_like.reader.reader import Reader"),
        ("gnsq_like.connection.connection", "from gnsq_like.http import client"),
        ("gnsq_like.reader.reader", "from gnsq_like.server.nsqd.nsqd import Nsqd"),
        ("gnsq_like.server.nsqd.nsqd", "from gnsq_like.reader.reader import Reader"),
        ("gnsq_like.contrib.flask", "from gnsq_like.connection.connection import Connection"),
        ("gnsq_like.spark.source.data_source", "from gnsq_like.cli import app"),
    ],
)
def test_the_check_sees_a_forbidden_import(module: str, source: str) -> None:
    assert len(violations(module, imports_of(module, source, is_package=False))) == 1


def test_no_test_file_imports_another() -> None:
    """What several share is in tests/support, so that whoever changes a test changes no other."""
    importing = [
        f"{path.relative_to(TESTS)}: {line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in path.read_text().splitlines()
        if line.startswith(("from tests.", "import tests.")) and ".test_" in line.split(" import ")[0]
    ]
    assert importing == []


def test_names_of_tests_are_under_80_characters() -> None:
    long = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) >= 80
    ]
    assert long == []


def import_graph() -> dict[str, set[str]]:
    """Which module imports which, for types or at run time, in functions or at the top."""
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        is_package = path.name == "__init__.py"
        targets = {
            module_of(item.target)
            for item in imports_in(module)
            if item.target.partition(".")[0] == PACKAGE
            # A package names its own modules for type checkers; they may import the package for its other names.
            and not (is_package and item.typing_only)
        }
        graph[module] = targets - {module}
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """One cycle of the graph as a path that ends where it began, or nothing."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for target in sorted(graph.get(path[-1], ())):
            if target in path:
                return [*path[path.index(target) :], target]
            if target not in done and (found := search([*path, target])):
                return found
        done.add(path[-1])
        return []

    for start in graph:
        if start not in done and (found := search([start])):
            return found
    return []


def test_imports_have_no_cycle() -> None:
    graph = import_graph()
    assert sum(map(len, graph.values())) > len(graph) / 2
    assert cycle_in(graph) == []


def run_python(code: str) -> dict[str, list[str]]:
    """What the code, run in a new process, leaves in `report`."""
    done = subprocess.run(
        [sys.executable, "-c", f"report = {{}}\n{code}\nimport json\nprint(json.dumps(report))"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT.parent,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, list[str]] = json.loads(done.stdout)
    return report


def test_importing_everything_patches_nothing() -> None:
    report = run_python("""
import importlib, os, pkgutil, queue, select, signal, socket, ssl, subprocess, sys, threading, time

watched = {
    f"{module.__name__}.{name}": (module, name, getattr(module, name))
    for module, names in {
        os: "fork read write waitpid",
        queue: "Queue SimpleQueue",
        select: "select poll",
        signal: "signal getsignal",
        socket: "socket create_connection getaddrinfo socketpair",
        ssl: "SSLContext SSLSocket",
        subprocess: "Popen",
        sys: "excepthook stdout stderr",
        threading: "Thread Lock RLock Event local _start_joinable_thread get_ident",
        time: "sleep",
    }.items()
    for name in names.split()
    if hasattr(module, name)
}
extras = {"click", "rich", "flask", "django", "prometheus_client", "gunicorn", "pyspark", "pyarrow", "msgpack"}
extras |= {"pytest", "jinja2", "cryptography", "werkzeug"}
extras |= {"django_tasks", "sqlalchemy", "opentelemetry", "health_check", "dramatiq", "kombu"}
try:
    import django
    from django.conf import settings
except ModuleNotFoundError:
    pass
else:  # models need an application, and Django's admin needs others
    needed = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")]
    settings.configure(INSTALLED_APPS=[*needed, "gnsq_like.contrib.django.outbox"])
    django.setup()
import gnsq_like
names = [module.name for module in pkgutil.walk_packages(gnsq_like.__path__, "gnsq_like.")]
report["imported"] = ["gnsq_like"]
report["without_their_extra"] = []
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in extras:
            raise
        report["without_their_extra"].append(name)
    else:
        report["imported"].append(name)

import gevent.monkey
report["saved"] = sorted(gevent.monkey.saved)
report["watched"] = list(watched)
report["changed"] = [k for k, (module, name, was) in watched.items() if getattr(module, name) is not was]
""")
    assert report["saved"] == []
    assert report["changed"] == []
    assert {"socket.socket", "threading.Thread", "time.sleep"} <= set(report["watched"])
    assert {room_of(module) for module in report["imported"]} >= BUILT
    seen = {*report["imported"], *report["without_their_extra"]}
    assert {m for m in MODULES if m not in seen and not m.startswith("gnsq_like.contrib.")} == set()


def test_public_names_and_constructing_load_no_requests_and_no_ssl() -> None:
    report = run_python("""
import sys
before = set(sys.modules)
from gnsq_like import Connection, LookupdClient, Message, NsqdHTTPClient, Producer, Reader, errors
Reader("clicks", "archive", print, nsqd_tcp_addresses=["127.0.0.1:4150"])
Reader("clicks", "archive", print, lookupd_http_addresses=["127.0.0.1:4161"], max_in_flight=200)
Producer("127.0.0.1:4150")
Producer(["127.0.0.1:4150", "[::1]:4150"])
report["loaded"] = sorted(set(sys.modules) - before)
""")
    assert "gnsq_like.reader.reader" in report["loaded"]
    assert not {"requests", "urllib3", "ssl"} & set(report["loaded"])


def test_public_names() -> None:
    import gnsq_like

    names = {"Connection", "LookupdClient", "Message", "NsqdHTTPClient", "Producer", "Reader", "errors"}
    assert set(gnsq_like.__all__) >= names
    assert len(set(gnsq_like.__all__)) == len(gnsq_like.__all__)
    assert set(gnsq_like.__all__) <= set(dir(gnsq_like))
    for name in gnsq_like.__all__:
        assert getattr(gnsq_like, name) is not None
    with pytest.raises(AttributeError, match="Raeder"):
        gnsq_like.Raeder  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_none_of_its_rooms() -> None:
    report = run_python("""
import sys
import gnsq_like
report["listed"] = dir(gnsq_like)
report["public"] = gnsq_like.__all__
report["loaded"] = [name for name in sys.modules if name.partition(".")[0] in {"gnsq_like", "gevent"}]
""")
    public = [name for name in report["listed"] if not name.startswith("__")]
    assert set(public) <= set(report["public"])
    assert "Reader" in public
    assert set(report["loaded"]) <= {"gnsq_like", "gnsq_like._lazy", "gnsq_like._version"}
