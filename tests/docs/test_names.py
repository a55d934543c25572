"""Names on the pages exist, and pages that list things list all of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from inspect import signature

from prometheus_client import CollectorRegistry

from gnsq_like import Producer, Reader
from gnsq_like.contrib.flask.extension import _OWN, NSQ
from gnsq_like.contrib.prometheus import Metrics
from gnsq_like.contrib.workers import master, pages
from gnsq_like.contrib.workers.plan import flags
from gnsq_like.errors import TLSError
from gnsq_like.options import ConnectionOptions
from gnsq_like.server import Nsqd
from gnsq_like.server.nsqd import http, information
from tests.support.pages import DOCS, page, section

ROOT = DOCS.parent
PACKAGE = ROOT / "gnsq_like"
#: Both pages for contributors: the short one, and the rest.
CONTRIBUTING = (ROOT / "CONTRIBUTING.rst").read_text() + page("internals/working.rst")
ARCHITECTURE = page("internals/architecture.rst")


# -- files, targets, sections -------------------------------------------------------------------------


def test_files_and_targets_that_are_named_exist() -> None:
    named = re.findall(r"``([\w./-]+/[\w./-]*)``", CONTRIBUTING) + re.findall(r"``([\w/]+\.py)``", ARCHITECTURE)
    roots = (ROOT, PACKAGE, PACKAGE / "server")
    assert {"gnsq_like/policy/", "wire/session.py"} <= set(named)
    assert [name for name in named if "NAME" not in name and not any((root / name).exists() for root in roots)] == []
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z-]+)``", CONTRIBUTING))
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_support_functions_of_contributing_exist() -> None:
    for module, name in re.findall(r"``(\w+)\.(\w+)``", CONTRIBUTING):
        if (path := ROOT / f"tests/support/{module}.py").exists():
            assert re.search(rf"^(?:def |class |){name}\b", path.read_text(), re.MULTILINE), f"{module}.{name}"


def test_names_that_recipes_tell_to_change_exist() -> None:
    recipes = re.sub(r"``\S+\.rst``", "", section(CONTRIBUTING, "Two recipes") + section(CONTRIBUTING, "Recipes"))
    named = {part for name in re.findall(r"``(\w+(?:\.\w+)?)``", recipes) for part in name.split(".")}
    sources = "\n".join(path.read_text() for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests/server").rglob("*.py")])
    assert [name for name in named if "NAME" not in name and not re.search(rf"\b{name}\b", sources)] == []


def test_each_room_is_in_the_tree_of_the_architecture() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    tree = section(ARCHITECTURE, "The rooms").partition("::\n")[2].partition("\nImports")[0]
    assert set(re.findall(r"^      (\w+)/", tree, re.MULTILINE)) == rooms


def test_sections_of_the_internals_that_code_cites_exist() -> None:
    internals = "\n".join(path.read_text() for path in (DOCS / "internals").glob("*.rst"))
    numbers = set(re.findall(r"^(?:\* )?\**(S?\d+(?:\.\d+)?)[.\s*]", internals, re.MULTILINE))
    cited = {
        number: str(path)
        for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        for line in re.findall(r"docs/internals (S?\d[\d., toS]*)", path.read_text())
        for number in re.findall(r"S?\d+(?:\.\d+)?", line)
    }
    assert {"1.12", "3.4"} <= cited.keys()
    assert {number: path for number, path in cited.items() if number not in numbers} == {}


# -- options, hooks and counts ------------------------------------------------------------------------


def table(name: str) -> dict[str, tuple[str, str, str]]:
    """Default, unit and meaning of each option in the page's table."""
    text = page(name).partition(".. list-table::")[2]
    rows = re.findall(r"^   \* - (.*)\n     - ?(.*)\n     - ?(.*)\n     - (.*)$", text, re.MULTILINE)
    return {option.strip("`"): (default, unit, meaning) for option, default, unit, meaning in rows}


def missing(names: Iterable[str], text: str, form: str = "``{}``") -> list[str]:
    return [name for name in names if form.format(name) not in text]


def test_hooks_and_counts_are_explained() -> None:
    text = page("reader.rst")
    hooks = [name for name in signature(Reader.__init__).parameters if name.startswith("on_")]
    assert missing(hooks, text, "``{}(") == []
    stats = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:4150").stats()
    assert missing([*stats, "rdy", "share", "in_flight"], text) == []
    assert missing(set(Producer("127.0.0.1:4150").stats()) - {"state"}, page("producer.rst")) == []


def test_the_page_about_security_has_its_options_and_the_kinds_of_tls_errors() -> None:
    text = page("security.rst")
    names = [option.name for option in fields(ConnectionOptions)]
    assert missing(names[names.index("tls_v1") : names.index("topology_region")], text, "{}") == []
    listed = text.partition("``kind``")[2].partition("Compression\n")[0]
    assert {*re.findall(r"``([a-z_]+)``  ", listed), "not_yet_valid"} - {"kind"} == set(TLSError.TEXTS)


def test_each_route_of_nsqd_is_on_the_page_of_nsqs_api_or_on_one_of_ours() -> None:
    nsqd = Nsqd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    routes = {**information.routes(nsqd), **http.routes(nsqd)}
    text = page("internals/nsqd.rst") + page("daemons.rst") + page("statements.rst")
    unknown = [path for path in routes if path.partition("<")[0] not in text and "/pprof/" not in path]
    assert unknown == [], "what NSQ's own nsqd lacks stands in docs/daemons.rst"


# -- metrics, processes -------------------------------------------------------------------------


def test_metrics_are_listed_on_the_page_and_in_the_module() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    made = {metric.name + ("_total" if metric.type == "counter" else "") for metric in registry.collect()}
    assert set(re.findall(r"``(nsq_(?:reader|producer|outbox)_\w+)``", page("web.rst"))) == made
    assert set(re.findall(r"^(nsq_\w+)", sys.modules[Metrics.__module__].__doc__ or "", re.MULTILINE)) == made
    assert missing(_OWN, page("web.rst"), "``NSQ_{}``") == []
    assert [name for name in re.findall(r"``nsq\.(\w+)", page("web.rst")) if not hasattr(NSQ, name)] == []


def test_flags_metrics_and_signals_of_supervised_processes_are_listed() -> None:
    text = page("workers.rst")
    assert missing((f"--{flag.name.replace('_', '-')}" for flag in flags()), text, "{}") == []
    families = pages.Collector({"workers": [], "wanted": 1, "restarts": {}}).collect()
    made = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    for listed in (section(text, "Health, metrics, logs"), pages.__doc__ or ""):
        assert set(re.findall(r"^(?:``)?(nsq_\w+?)(?:``)?\s+(?:gauge|counter)", listed, re.MULTILINE)) == made
        listed_reasons = re.search(r"by (?:``)?reason(?:``)?: ([\w, ]+)", listed)
        assert listed_reasons and listed_reasons[1].strip().split(", ") == [str(reason) for reason in pages.REASONS]
    head = re.findall(r"^((?:[A-Z0-9]+ )*[A-Z0-9]+)  +\w", master.__doc__ or "", re.MULTILINE)
    signals = {f"SIG{name}" for line in head for name in line.split()}
    assert set(re.findall(r"SIG[A-Z0-9]+", section(text, "Signals"))) == signals
