"""docs/internals/architecture.rst agrees with the code: rooms and their imports, the tree, files and functions."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.pages import DOCS, page, section
from tests.support.rooms import FACADE, LEAVES, OUTER, PURE, ROOMS, Room

PAGE = page("internals/architecture.rst")
PACKAGE = DOCS.parent / "gnsq_like"

#: ``Name`` or ``Class.method`` followed by (``file.py``) is defined there.
FUNCTIONS = re.findall(r"``([\w.]+)``\s+\(``([\w/]+\.py)``\)", PAGE)
FILES = sorted(set(re.findall(r"``([\w/]+\.py)``", PAGE)))
#: Words of the table that stand for several names.
GROUPS = {"leaves": LEAVES, "outer rooms": OUTER, "I/O": PURE}


#: What may be ``Class.member`` on the page.
DOTTED = set(re.findall(r"``(\w+)\.(\w+)(?:\(\))?``", PAGE))


def members() -> dict[str, set[str]]:
    """For each class of the package that the page may name: its methods, properties and attributes."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    wanted = {name for name, _ in DOTTED}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if wanted.isdisjoint(re.findall(r"^ *class (\w+)", text, re.MULTILINE)):
            continue
        for each in ast.walk(ast.parse(text)):
            if isinstance(each, ast.ClassDef) and each.name in wanted:
                found[each.name] |= {node.name for node in ast.walk(each) if isinstance(node, ast.FunctionDef)}
                found[each.name] |= {node.attr for node in ast.walk(each) if isinstance(node, ast.Attribute)}
    return found


MEMBERS = members()
#: ``Class.member``, wherever it is named.
NAMED = sorted((one, two) for one, two in DOTTED if one in MEMBERS)


def names(cell: str) -> frozenset[str]:
    """The names in a cell of the table."""
    found: set[str] = set()
    for part in filter(None, (part.strip() for part in cell.split(","))):
        found |= GROUPS.get(part, {part.strip("`")})
    return frozenset(found)


def table_of_rooms() -> dict[str, Room]:
    """The table of the page, as ROOMS has it."""
    rule = re.search(r"^=+(?: +=+){2}$", PAGE, re.MULTILINE)
    assert rule
    starts = [match.start() for match in re.finditer("=+", rule[0])]
    body = PAGE[rule.end() :].split(rule[0])[1]
    rows: list[list[str]] = []
    for line in filter(None, body.splitlines()):
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [" ".join([above, below]).strip() for above, below in zip(rows[-1], cells, strict=True)]
    rooms: dict[str, Room] = {}
    for room, imports, others in rows:
        kind, _, listed = imports.partition(" ")
        only = {"any": None, "not": None, "none": frozenset[str](), "only": names(listed)}[kind]
        never = names(listed) if kind == "not" else frozenset[str]()
        rooms |= dict.fromkeys(names(room), Room(never, names(others), only))
    return rooms


def test_the_table_is_the_one_that_is_enforced() -> None:
    assert table_of_rooms() == ROOMS


@pytest.mark.parametrize("room", [room for room in ROOMS if room != FACADE and "." not in room])
def test_every_room_is_in_the_tree(room: str) -> None:
    tree = section(PAGE, "The rooms").partition("::\n")[2].partition("\nImports")[0]
    is_package = (PACKAGE / room).is_dir()
    assert re.search(rf"^      (?:\w+, )?{room}{'/' if is_package else '[, ]'}", tree, re.MULTILINE)
    if is_package:
        inner = {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")}
        below = tree.partition(f"      {room}/")[2]
        listed = set(re.findall(r"(\w+)/", re.match(r".*\n((?:        .*\n)*)", below)[1]))  # type: ignore[index]
        assert listed == inner


def test_the_readme_lists_the_rooms_that_are_directories() -> None:
    layout = section((DOCS.parent / "README.rst").read_text(), "Layout")
    assert set(re.findall(r"``(\w+)/``", layout)) - {"gnsq_like"} == {
        room for room in ROOMS if (PACKAGE / room).is_dir()
    }


def test_the_page_lists_the_leaves() -> None:
    listed = re.search(r"\*Leaves\* are (.*?)\.", PAGE, re.DOTALL)
    assert listed
    assert set(re.findall(r"``(\w+)``", listed[1])) == LEAVES


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_named_exists(name: str) -> None:
    assert any((root / name).is_file() for root in (PACKAGE, DOCS.parent))


@pytest.mark.parametrize(("name", "file"), sorted(set(FUNCTIONS)))
def test_a_function_that_is_named_is_in_its_file(name: str, file: str) -> None:
    module = import_module(".".join(["gnsq_like", *Path(file).with_suffix("").parts]))
    defined = reduce(getattr, name.split("."), module)
    assert defined.__module__ == module.__name__


@pytest.mark.parametrize(("cls", "member"), NAMED)
def test_a_member_that_is_named_exists(cls: str, member: str) -> None:
    assert member in MEMBERS[cls]


def test_the_page_names_files_and_functions() -> None:
    assert {("Nsqd", "_work"), ("Charge", "rdy")} <= set(NAMED)
    assert {"wire/session.py", "connection/outbox.py", "tests/support/rooms.py"} <= set(FILES)
    assert {("Session.receive", "wire/session.py"), ("plan", "policy/rdy.py")} <= set(FUNCTIONS)
