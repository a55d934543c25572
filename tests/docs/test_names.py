"""Names on the pages exist, and pages that list things list all of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from gnsq_like.contrib.flask.extension import _OWN, NSQ
from gnsq_like.contrib.prometheus import Metrics
from gnsq_like.server import Nsqd
from gnsq_like.server.nsqd import http, information
from gnsq_like.workers import master, pages
from gnsq_like.workers.plan import flags
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


def missing(names: Iterable[str], text: str, form: str = "``{}``") -> list[str]:
    return [name for name in names if form.format(name) not in text]


def test_each_route_of_nsqd_is_on_the_page_of_nsqs_api_or_on_one_of_ours() -> None:
    nsqd = Nsqd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    routes = {**information.routes(nsqd), **http.routes(nsqd)}
    text = page("internals/nsqd.rst") + page("daemons.rst")
    unknown = [path for path in routes if path.partition("<")[0] not in text and "/pprof/" not in path]
    assert unknown == [], "describe these in docs/daemons.rst if NSQ's nsqd lacks them, else in docs/internals/nsqd.rst"


# -- metrics, processes -------------------------------------------------------------------------


def test_metrics_are_listed_in_the_module_and_settings_on_the_page() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    made = {metric.name + ("_total" if metric.type == "counter" else "") for metric in registry.collect()}
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
