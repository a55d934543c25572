"""Writes gnsq_like/options/keywords.py from the option classes; make generate runs it."""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

from gnsq_like.options.options import ConnectionOptions, DiscoveryOptions, ProducerOptions, ReaderOptions

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "gnsq_like" / "options" / "keywords.py"

_HEAD = '''"""The options as typed keywords, which editors complete and mypy checks.

``def reading(**options: Unpack[ReaderOptionsDict])``. Made from ``options.py`` by ``make generate``; not to be
edited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict
'''

#: Each class with its base, whose options it inherits.
_CLASSES: list[tuple[type[Any], type[Any] | None]] = [
    (ConnectionOptions, None),
    (DiscoveryOptions, ConnectionOptions),
    (ProducerOptions, DiscoveryOptions),
    (ReaderOptions, DiscoveryOptions),
]


def annotation(option: Any) -> str:
    """The type of an option; strings of which only some are valid are literals."""
    text: str = option.type
    words = [*option.metadata["choices"], *(each for each in option.metadata["also"] if isinstance(each, str))]
    if words:
        text = re.sub(r"\bstr\b", f"Literal[{', '.join(map(repr, words))}]".replace("'", '"'), text, count=1)
    return text


def generate() -> str:
    """The text of the file."""
    parts = [_HEAD]
    for cls, base in _CLASSES:
        inherited = {option.name for option in fields(base)} if base else set()
        parent = f"{base.__name__}Dict" if base else "TypedDict"
        lines = [f"class {cls.__name__}Dict({parent}, total=False):", f'    """See ``{cls.__name__}``."""', ""]
        for option in fields(cls):
            if option.name not in inherited:
                lines += textwrap.wrap(
                    option.metadata["text"], 120, initial_indent="    #: ", subsequent_indent="    #: "
                )
                lines.append(f"    {option.name}: {annotation(option)}")
        parts.append("\n".join(lines) + "\n")
    return "\n\n".join(parts)


if __name__ == "__main__":
    PATH.write_text(generate())
