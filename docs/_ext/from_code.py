"""Directives that write parts of the reference from the code, so that it cannot differ.

``.. options:: module:Class``  the options of a class: name, type, default, bounds, text
``.. metrics::``               the metrics of Readers, Producers, the supervisor, pipelines, and the admin
``.. json-values::``   the values that each type of a schema takes
``.. client-flags::``          the flags that the tools share, which their ``--help`` does not list

An option becomes a ``setting``, a metric a ``metric``: objects of Sphinx, with an anchor, in the index and the search.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from importlib import import_module
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

#: Defaults that the machine decides.
NOT_FIXED = {
    "client_id": "the short host name",
    "hostname": "the full host name",
    "node_id": "from the host name",
    "user_agent": "gnsq_like/VERSION",
}
#: Options whose unit their names do not show: bytes, rather than a count.
SIZES = re.compile(r"_(bytes|size)$|^max_(msg|body)_size$|^(max_)?output_buffer_size$")
#: Floats that are no durations.
NOT_SECONDS = {"lookupd_poll_jitter"}


def comments(cls: type) -> dict[str, str]:
    """For each field that a class defines itself: its ``#:`` comment; one comment serves the fields right below."""
    source = inspect.getsource(cls).splitlines()
    indent = re.match(r" *", source[0])
    assert indent
    tree = ast.parse("\n".join(line[len(indent[0]) :] for line in source)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    last = ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines: list[str] = []
            number = node.lineno - 2
            while source[number].strip().startswith("#:"):
                lines.insert(0, source[number].strip()[2:].strip())
                number -= 1
            last = " ".join(lines) or ("" if source[number].strip() == "" else last)
            found[node.target.id] = last
    return found


def text_of(cls: type, option: Field[Any]) -> str:
    """The text in a field's metadata, or else the comment above it in the class that defines it."""
    if "text" in option.metadata:
        return str(option.metadata["text"])
    for each in cls.__mro__:
        if option.name in vars(each).get("__annotations__", {}):
            return comments(each).get(option.name, "")
    return ""


def default_of(option: Field[Any]) -> str:
    if option.name in NOT_FIXED:
        return NOT_FIXED[option.name]
    if option.default is not MISSING:
        return repr(option.default)
    return repr(option.default_factory()) if option.default_factory is not MISSING else "required"


def unit_of(option: Field[Any]) -> str:
    """ "seconds", "bytes", "percent", or nothing for a count, a name or a choice."""
    kind = str(option.type)
    if option.name == "sample_rate":
        return "percent"
    if SIZES.search(option.name):
        return "bytes"
    if re.search(r"\bfloat\b", kind) and "Callable" not in kind and option.name not in NOT_SECONDS:
        return "seconds"
    return ""


def bounds_of(option: Field[Any]) -> str:
    rules = option.metadata
    words = [
        f"{word} {rules[key]:g}"
        for key, word in (("minimum", "at least"), ("above", "above"), ("maximum", "at most"))
        if rules.get(key) is not None
    ]
    if rules.get("choices"):
        words.append("one of " + ", ".join(f'"{each}"' for each in rules["choices"]))
    also = [repr(each) for each in rules.get("also", ())]
    if rules.get("call"):
        also.append("a callable")
    return ", ".join(words) + (("; or " if words else "or ") + ", ".join(also) if also else "")


def settings(target: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """For each option of a class: its public name, its facts in the order to show, its text."""
    module, _, name = target.partition(":")
    cls = getattr(import_module(module), name)
    for option in fields(cls):
        public = option.metadata.get("name", option.name)
        if prefix := option.metadata.get("prefix"):
            public = f"{prefix}NAME"
        facts = {
            "type": str(option.type).replace("collections.abc.", ""),
            "default": default_of(option),
            "unit": "milliseconds" if public.endswith("Ms") else unit_of(option),
            "bounds": bounds_of(option),
        }
        if public.endswith("Ms") and isinstance(option.default, float):
            facts["default"] = f"{option.default * 1000:g}"
        yield public, {key: value for key, value in facts.items() if value}, text_of(cls, option)


def metrics() -> Iterator[tuple[str, str, str, str]]:
    """Name, kind, text and labels of each metric."""
    from prometheus_client import CollectorRegistry

    from gnsq_like import Producer, Reader
    from gnsq_like.admin.history.alerts import down
    from gnsq_like.admin.upstream.overview import NodeTotal, Overview, add_node, read_stats
    from gnsq_like.admin.web.metrics import ClusterCollector
    from gnsq_like.cluster.nodes import Node
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.http.nsqd import checked_stats
    from gnsq_like.spark.pipeline.status import RunStatus
    from gnsq_like.spark.source.plan import Depth, Queue
    from gnsq_like.spark.staging.offsets import TopicChannel
    from gnsq_like.workers import pages

    registry = CollectorRegistry()
    collected = Metrics(registry)
    # Kept until the end: Metrics itself refers to them weakly.
    reader = Reader("topic", "channel", print, nsqd_tcp_addresses="127.0.0.1:4150")
    producer = Producer("127.0.0.1:4150")
    collected.watch_reader(reader)
    collected.watch_producer(producer)
    worker = {"number": 1, "state": "running", "memory_bytes": 0, "started_at": 0, "heartbeat_age": 0}
    supervisor = pages.Collector({"workers": [worker], "wanted": 1, "restarts": {}})
    pipeline = RunStatus("pipeline")
    queue = Queue(TopicChannel("topic", "channel"), "127.0.0.1:4150")
    pipeline.look({queue: Depth(0)}, ())
    latency = {"count": 1, "percentiles": [{"quantile": 0.99, "value": 1.0}]}
    channel = {"channel_name": "channel", "zone_local_msg_count": 1, "e2e_processing_latency": latency}
    topic = {"topic_name": "topic", "channels": [channel], "e2e_processing_latency": latency}
    overview = Overview(0.0, 0.0, lookupds={"127.0.0.1:4161": ""})
    add_node(overview, NodeTotal(Node("host", "127.0.0.1", 4150, 4151)), read_stats(checked_stats({"topics": [topic]})))
    cluster = ClusterCollector(overview, [down("127.0.0.1:4151")])
    for family in [*registry.collect(), *supervisor.collect(), *pipeline.collect(), *cluster.collect()]:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        yield name, family.type, family.documentation, ", ".join(labels)


class _Generated(Directive):
    has_content = False

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        container = nodes.container()
        self.state.nested_parse(StringList(list(self.lines()), "generated"), self.content_offset, container)
        return container.children


class Options(_Generated):
    required_arguments = 1

    def lines(self) -> Iterator[str]:
        whose = self.arguments[0].partition(":")[2].removesuffix("Options")
        for name, facts, text in settings(self.arguments[0]):
            yield from (f".. setting:: {whose}.{name}", "")
            yield "   " + ", ".join(
                f"{key}: ``{value}``" if key in {"type", "default"} else value for key, value in facts.items()
            )
            yield from ("", f"   {text}", "")


class MetricsTable(_Generated):
    def lines(self) -> Iterator[str]:
        for name, kind, text, labels in metrics():
            yield from (f".. metric:: {name}", "", f"   {kind}{', by ' + labels if labels else ''}. {text}", "")


class JsonValues(_Generated):
    def lines(self) -> Iterator[str]:
        from gnsq_like.spark.source.judge import RULES

        yield from (".. list-table::", "   :header-rows: 1", "", "   * - Type", "     - Values")
        for rule in RULES:
            yield from (f"   * - {rule.name}", f"     - {rule.values}")


class ClientFlags(_Generated):
    def lines(self) -> Iterator[str]:
        from gnsq_like.cli.client_flags import all_flags

        yield from (".. program:: gnsq-like", "")
        for flag in all_flags():
            yield from (f".. option:: {flag.opts[0]} VALUE", "", f"   {flag.help}", "")


def without_environment(app: Sphinx, ctx: Any, lines: list[str]) -> None:
    """sphinx-click's section of environment variables: every option has one, as the page says."""
    lines.clear()


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_object_type("setting", "setting", "single: %s (option)", objname="option")
    app.add_object_type("metric", "metric", "single: %s (metric)", objname="metric")
    app.add_directive("options", Options)
    app.add_directive("metrics", MetricsTable)
    app.add_directive("json-values", JsonValues)
    app.add_directive("client-flags", ClientFlags)
    # sphinx-click 6 declares "envvars" and sends "envars".
    app.add_event("sphinx-click-process-envars")
    for event in ("sphinx-click-process-envars", "sphinx-click-process-envvars"):
        app.connect(event, without_environment)
    return {"parallel_read_safe": True}
