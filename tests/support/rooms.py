"""Which room may import what: the table of docs/internals/architecture.rst, as rules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.pages import page

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
