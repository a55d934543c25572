"""Gives each page a description for search engines and link previews: its first sentences, as plain text."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

#: What search engines show; the sentence that would pass it is left out.
LONGEST = 200


def description(doctree: nodes.document) -> str:
    """The first sentences of the first paragraph; "" for a page without one."""
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section | nodes.document):
            first, *others = re.split(r"(?<=\.) ", " ".join(paragraph.astext().split()).rstrip(":"))
            for sentence in others:
                if len(first) + len(sentence) >= LONGEST:
                    break
                first += f" {sentence}"
            return first
    return ""


def add(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    if doctree is not None and (text := description(doctree)):
        context["metatags"] = f'{context.get("metatags", "")}<meta name="description" content="{escape(text)}">'


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", add)
    return {"parallel_read_safe": True}
