"""The parts of a page: its route, the request for it, and its template.

Each file beside this one is a page, and has its ``ROUTE``; ``act.py`` has that of the buttons on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.history.alerts import Alert
from gnsq_like.admin.history.recorder import Recorder
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.admin.upstream.overview import Overview
from gnsq_like.admin.web.drawing import spark
from gnsq_like.admin.web.site import Site

#: Seconds for which viewers share an overview.
SHARED_SECONDS = 2.0
#: Points of the small graphs.
POINTS = 30
#: Columns of tables that begin with the lowest.
UPWARDS = ("name", "host", "zone")


@dataclass
class View:
    """A request for a page, for the code that makes it."""

    site: Site
    cluster: Cluster
    recorder: Recorder
    #: The query's parameters.
    query: Mapping[str, str]
    may_write: bool
    overview: Overview = field(init=False)
    #: The line of totals, and the alerts with their beginnings.
    totals: dict[str, object] = field(init=False)
    alerts: dict[Alert, float] = field(init=False)

    def look(self) -> None:
        """Take the overview that all pages begin with. May switch."""
        self.overview = self.recorder.look(SHARED_SECONDS)
        self.totals = self._totals()
        self.alerts = self.recorder.alerts.newest_first()

    def sparks(self, *key: str, metrics: tuple[str, ...] = ("depth", "rate")) -> dict[str, object]:
        """Small graphs of a series, by metric."""
        name = "/".join(key) or "the cluster"
        return {
            metric: spark(self.recorder.columns.recent(key, metric, POINTS), f"{metric} of {name}, last hour", metric)
            for metric in metrics
        }

    def _totals(self) -> dict[str, object]:
        """The line of totals at the top."""
        overview = self.overview
        published, arriving, finished = self.recorder.cluster_rates()
        return {
            "depth": overview.depth,
            "in_flight": overview.in_flight,
            "published": published,
            "arriving": arriving,
            "finished": finished,
            "topics": len(overview.topics),
            "channels": sum(len(topic.channels) for topic in overview.topics.values()),
            "clients": overview.clients,
            "nodes": len(overview.nodes),
            "nodes_up": sum(not total.problem for total in overview.nodes),
            "sparks": self.sparks(),
        }


@dataclass
class Page:
    """A page: a template and its values."""

    template: str
    title: str
    values: Mapping[str, object]
    warnings: list[str] = field(default_factory=list)
    status: int = 200


@dataclass(frozen=True)
class Route:
    """A path, and what is shown and done there.

    :ivar rule: as of Flask; the names in it are arguments of ``make`` and ``post``
    :ivar endpoint: for links
    :ivar section: which entry of the menu it belongs to
    :ivar make: makes the page, in the core's thread; None if there is only a form
    :ivar post: carries out the form, with the :class:`~gnsq_like.admin.web.screens.Screens`
    :ivar kept: whether it shows nothing but the overview and its history, so that viewers may share it
    :ivar has_messages: whether it shows messages, which not everybody may see
    """

    rule: str
    endpoint: str
    section: str
    make: Callable[..., Page] | None = None
    post: Callable[..., AnyResponse] | None = None
    kept: bool = False
    has_messages: bool = False
