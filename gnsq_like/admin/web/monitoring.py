"""What programs watch a cluster by: /metrics for Prometheus, and /healthz.

Both show what the admin has found anyway, and cause at most one round of questions for any number of programs.
"""

from __future__ import annotations

import json
import time

from flask import Response
from prometheus_client import CollectorRegistry, generate_latest

from gnsq_like.admin.history.alerts import of_daemons
from gnsq_like.admin.web.metrics import ClusterCollector
from gnsq_like.admin.web.site import Site


class Monitoring:
    """The pages for programs of a site."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def metrics(self) -> Response:
        """The request's cluster in Prometheus's text format. May switch, or block."""
        core, shared, overview = self._site.core, self._site.cluster.shared, self._site.look()
        collector = ClusterCollector(overview, self._site.alerts)
        # One for each overview: that of a large cluster takes seconds of CPU time.
        body = core.run(
            lambda: shared.get(("metrics",), lambda: core.compute(_text, collector), time.monotonic() - overview.taken)
        )
        return Response(body, content_type="text/plain; version=0.0.4; charset=utf-8")

    def health(self) -> tuple[Response, int]:
        """Whether all daemons of the request's cluster answer, and which do not. May switch, or block."""
        overview = self._site.look()
        problems = [alert.as_json() for alert in of_daemons(overview)]
        found = {"status": "failing" if problems else "ok", "problems": problems, "updated_at": int(overview.at)}
        return Response(json.dumps(found), content_type="application/json"), 503 if problems else 200


def _text(collector: ClusterCollector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
