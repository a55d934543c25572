"""Turns literals on the pages into links, so that the pages also read well as plain text.

``docs/reader.rst`` becomes a link to that page, and ``Reader.stop()``, ``reader.stop()``, ``max_in_flight`` and
``nsq_workers`` become links to the reference, if there is an object of that name. Other literals stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

NAME = re.compile(r"[A-Za-z_][\w.]*(?=\(\)$|$|=$)")


class Links(SphinxTransform):
    default_priority = 210

    def apply(self, **_: Any) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, addnodes.pending_xref | nodes.reference) or literal.get("classes"):
                continue
            text = literal.astext()
            if page := self._page(text):
                link = addnodes.pending_xref(
                    "", refdomain="std", reftype="doc", reftarget=f"/{page}", refexplicit=False, refwarn=True
                )
                link["refdoc"] = self.env.docname
                link += nodes.inline(text, text, classes=["xref", "std", "std-doc"])
                literal.replace_self(link)
            elif NAME.match(text):
                link = addnodes.pending_xref("", refdomain="", reftype="named", reftarget=NAME.match(text)[0])  # type: ignore[index]
                link["refdoc"] = self.env.docname
                link += literal.deepcopy()
                literal.replace_self(link)

    def _page(self, text: str) -> str:
        page = text.removeprefix("docs/").removesuffix(".rst")
        return page if text.endswith(".rst") and page in self.env.found_docs else ""


#: Where a bare name is looked for, in this order.
MODULES = ("gnsq_like", "gnsq_like.errors", "gnsq_like.deadletter", "gnsq_like.server", "gnsq_like.testing")


def _capital(match: re.Match[str]) -> str:
    return match[0].capitalize()


def resolve(app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Element) -> nodes.Node | None:
    """A link to the object of that name; the plain literal if there is none."""
    if node["reftype"] != "named":
        return None
    target, here = re.sub(r"^(reader|producer|message)\.", _capital, node["reftarget"]), node["refdoc"]
    objects = env.domains["py"].objects
    for name in (target, *(f"{module}.{target}" for module in MODULES)):
        if name in objects and objects[name].docname != here:
            return _reference(app, here, objects[name].docname, objects[name].node_id, content)
    if "_" in target and "." not in target:
        for kind, name in (("setting", f"Reader.{target}"), ("setting", f"Producer.{target}"), ("metric", target)):
            if found := env.domains["std"].objects.get((kind, name)):
                return _reference(app, here, *found, content) if found[0] != here else content
    return content


def _reference(app: Sphinx, here: str, page: str, anchor: str, content: nodes.Element) -> nodes.Node:
    reference = nodes.reference("", "", internal=True)
    reference["refuri"] = f"{app.builder.get_relative_uri(here, page)}#{anchor}"
    reference += content
    return reference


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(Links)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
