"""Writes gnsq_like/options/keywords.py from the option classes; make generate runs it."""

from __future__ import annotations

import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

from gnsq_like.options import ConnectionOptions, DiscoveryOptions, ProducerOptions, ReaderOptions

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "gnsq_like" / "options" / "keywords.py"

_HEAD = '''"""The options as typed keywords, which editors complete and mypy checks.

``def reading(**options: Unpack[ReaderOptionsDict])``. Made from the option classes by ``make generate``; not to be
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


def generate() -> str:
    """The text of the file."""
    parts = [_HEAD]
    for cls, base in _CLASSES:
        inherited = {option.name for option in fields(base)} if base else set()
        parent = f"{base.__name__}Dict" if base else "TypedDict"
        own = [option for option in fields(cls) if option.name not in inherited]
        if cls is ProducerOptions:
            encoder = [option for option in own if option.name == "encoder"]
            own = [option for option in own if option not in encoder]
            name = f"Unencoded{cls.__name__}Dict"
            parts.append(_dict_of(name, parent, f"See ``{cls.__name__}``: all but the encoder.", own))
            parent, own = name, encoder
        parts.append(_dict_of(f"{cls.__name__}Dict", parent, f"See ``{cls.__name__}``.", own))
    return "\n\n".join(parts)


def _dict_of(name: str, parent: str, text: str, options: list[Any]) -> str:
    lines = [f"class {name}({parent}, total=False):", f'    """{text}"""', ""]
    for option in options:
        lines += textwrap.wrap(option.metadata["text"], 120, initial_indent="    #: ", subsequent_indent="    #: ")
        lines.append(f"    {option.name}: {option.type}".replace("'", '"'))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(generate())
