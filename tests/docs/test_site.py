"""The site that make docs has built: the reference has every public name, and no internal link leads nowhere."""

from __future__ import annotations

import inspect
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import click
import pytest

from gnsq_like import errors
from gnsq_like.cli.app import COMMANDS
from gnsq_like.cli.client_flags import all_flags
from gnsq_like.options import ConnectionOptions, ProducerOptions, ReaderOptions
from gnsq_like.server import NsqdOptions, NsqlookupdOptions
from tests.support.pages import DOCS, PUBLIC_PACKAGES

pytestmark = pytest.mark.site

SITE = DOCS / "_build/html"


@cache
def inventory() -> dict[str, set[str]]:
    """For each kind of object, as "py:class": the names in the reference."""
    header, _, packed = (SITE / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert b"Sphinx inventory version 2" in header
    found: defaultdict[str, set[str]] = defaultdict(set)
    for line in zlib.decompress(packed).decode().splitlines():
        name, kind = re.match(r"(.+?)\s+(\S+:\S+)\s+-?\d+\s", line).groups()  # type: ignore[union-attr]
        found[kind].add(name)
    return found


def names(domain: str) -> set[str]:
    return {name for kind, found in inventory().items() if kind.startswith(domain) for name in found}


def public() -> Iterator[str]:
    """Public names, and the members of public classes that have a docstring."""
    for package in PUBLIC_PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value) or name == "__version__":
                continue
            yield f"{package}.{name}"
            if inspect.isclass(value) and value.__module__.startswith("gnsq_like") and not name.endswith("Options"):
                for member, each in vars(value).items():
                    if (
                        not member.startswith("_")
                        and isinstance(inspect.unwrap(_plain(each)), _MEMBERS)
                        and each.__doc__
                    ):
                        yield f"{package}.{name}.{member}"


_MEMBERS = (type(lambda: None), property)


def _plain(member: Any) -> Any:
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


def test_public_names_and_errors_are_in_the_reference() -> None:
    expected = {*public(), *(f"gnsq_like.errors.{name}" for name in errors.__all__ if name != "ERROR_CODES")}
    assert expected - names("py:") == set()


@pytest.mark.parametrize("kind", [ReaderOptions, ProducerOptions, ConnectionOptions, NsqdOptions, NsqlookupdOptions])
def test_every_option_is_in_the_reference(kind: type) -> None:
    whose = kind.__name__.removesuffix("Options")
    expected = {f"{whose}.{option.name}" for option in fields(kind)}
    assert expected <= inventory()["std:setting"]


def test_every_option_of_the_admin_and_of_spark_is_in_the_reference() -> None:
    for module, name in (
        ("admin.admin_options", "AdminOptions"),
        ("spark.format_options", "SourceOptions"),
        ("spark.sink", "SinkOptions"),
    ):
        if module.startswith("spark"):
            pytest.importorskip("pyarrow")
        kind = getattr(import_module(f"gnsq_like.{module}"), name)
        whose = name.removesuffix("Options")
        for option in fields(kind):
            public_name = option.metadata.get("name", option.name)
            if "prefix" in option.metadata:
                public_name = f"{option.metadata['prefix']}NAME"
            assert f"{whose}.{public_name}" in inventory()["std:setting"]


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from commands(inner, f"{path}-{name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_is_in_the_reference(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    known = inventory()["std:cmdoption"]
    for path, command in commands(getattr(import_module(module), attribute), f"gnsq-like-{name}"):
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                assert {f"{path}.{flag}" for flag in param.opts} <= known


def test_the_flags_of_the_client_are_in_the_reference() -> None:
    expected = {f"gnsq-like.{flag.opts[0]}" for flag in all_flags()}
    assert expected <= inventory()["std:cmdoption"]


def test_every_metric_is_in_the_reference() -> None:
    from gnsq_like.admin.web import metrics
    from gnsq_like.contrib import prometheus
    from gnsq_like.spark.pipeline import status
    from gnsq_like.workers import pages

    tables = "\n".join(str(each.__doc__) for each in (metrics, prometheus, pages, status))
    listed = set(re.findall(r"^(nsq_\w+) ", tables, re.MULTILINE))
    assert len(listed) > 20
    assert listed == inventory()["std:metric"]


class Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.titles = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.anchors.add(found["id"])
        self.links += [found[name] for name in ("href", "src") if name in found]
        self.titles += tag == "h1"


@cache
def pages() -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts}


def test_no_link_within_the_site_leads_nowhere() -> None:
    broken = []
    for path, page in pages().items():
        for link in page.links:
            target, anchor = urldefrag(unquote(link))
            target = target.partition("?")[0]
            if re.match(r"[a-z]+:|//", target):
                continue
            there = (path.parent / target).resolve() if target else path
            if "_modules" in path.parts:  # Sphinx takes the objects of a module to be documented under one name of it
                anchor = ""
            if not there.is_file() or (anchor and there in pages() and anchor not in pages()[there].anchors):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    assert len(pages()) > 40
    assert sorted(set(broken)) == []


def test_the_site_works_without_the_net() -> None:
    """Nothing that a page shows comes from elsewhere; links for readers may."""
    for path, page in pages().items():
        for tag in re.findall(r"<(?:script|img|link)\b[^>]*>", path.read_text()):
            assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", tag), f"{path.name}: {tag}"
        assert page.titles == 1 or path.name in {"genindex.html", "search.html"}, path


def test_a_bare_name_and_a_file_of_a_page_are_links() -> None:
    text = (SITE / "reader.html").read_text()
    assert 'href="reference/client.html#gnsq_like.Reader.stats"' in text
    assert 'href="security.html"' in text
