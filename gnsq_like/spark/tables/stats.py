"""Statistics of a Parquet file for Delta's log: readers pass over files that cannot have what they look for.

There is no minimum and maximum of a type for which readers disagree (NaN), for which JSON is not exact (decimals), or
for which they would be of no use. Long texts would make the log long.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

#: How many columns have statistics; Delta's own default.
_MOST_COLUMNS = 32
#: Characters of a text that is given as minimum or maximum.
_LONGEST = 64


class _Leaf(NamedTuple):
    """A column of the file. ``path`` is empty if it is part of an array or a map."""

    path: tuple[str, ...]
    kind: pa.DataType


def stats_of(metadata: parquet.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """The statistics of a whole file, as Delta's JSON has them."""
    result: dict[str, Any] = {
        "numRecords": metadata.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    plain = [(number, leaf) for number, leaf in enumerate(_leaves(schema)) if leaf.path]
    for number, leaf in plain[:_MOST_COLUMNS]:
        found = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
        if any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            _put(result["nullCount"], leaf.path, sum(each.null_count for each in found))
        bounds = [each for each in found if each.has_min_max]
        # A group without bounds has nothing but nulls, or values too long for bounds.
        if not bounds or any(each.num_values and not each.has_min_max for each in found):
            continue
        lowest, highest = min(each.min for each in bounds), max(each.max for each in bounds)
        least, most = _text(lowest, leaf.kind), _text(highest, leaf.kind)
        if least is not None and most is not None:
            _put(result["minValues"], leaf.path, least)
            _put(result["maxValues"], leaf.path, most)
    return result


def _leaves(schema: pa.Schema) -> Iterator[_Leaf]:
    for field in schema:
        yield from _of_field((field.name,), field.type)


def _of_field(path: tuple[str, ...], kind: pa.DataType) -> Iterator[_Leaf]:
    """The columns of a field in the order of the file."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _of_field((*path, field.name) if path else (), field.type)
    elif pa.types.is_list(kind):
        yield from _of_field((), kind.value_type)
    elif pa.types.is_map(kind):
        yield from _of_field((), kind.key_type)
        yield from _of_field((), kind.item_type)
    else:
        yield _Leaf(path, kind)


def _put(into: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _text(value: Any, kind: pa.DataType) -> Any:
    """A bound as JSON has it; None if it is not to be given."""
    if pa.types.is_integer(kind):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return None
