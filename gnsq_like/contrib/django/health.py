"""A check for django-health-check (4 or newer), beside those of the database and the cache::

    from health_check.views import HealthCheckView

    path("health/", HealthCheckView.as_view(checks=["health_check.Database", "gnsq_like.contrib.django.health.NSQ"]))

It reports what ``healthz`` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gnsq_like.contrib.django import publishing, readers
from gnsq_like.contrib.shared.extras import missing

try:
    from health_check.base import HealthCheck
    from health_check.exceptions import ServiceUnavailable, ServiceWarning
except ModuleNotFoundError as exc:
    raise missing(exc, distribution="django-health-check") from exc


@dataclasses.dataclass
class NSQ(HealthCheck):
    """Fails if a reader of this process is unhealthy; or, unless ``producer`` is False, if every nsqd is unreachable.

    :param producer: whether publishes that fail at once are a failure, too. The response is 500 then: set it to False
        if that would remove a process that can answer other pages
    """

    producer: bool = True

    async def run(self) -> None:
        """Raise the problems. Never switches.

        :raises ServiceUnavailable: if a reader is unhealthy
        :raises ServiceWarning: if only publishes fail
        """
        from gnsq_like.contrib.health import report  # loads gevent

        healthy, answer = report(readers.made, publishing.made_producers())
        if not healthy:
            raise ServiceUnavailable("; ".join(_problems(answer["readers"])))
        if self.producer and answer["status"] != "ok":
            raise ServiceWarning("; ".join(each["problem"] for each in answer["producers"] if each["problem"]))


def _problems(reported: list[Mapping[str, Any]]) -> Iterator[str]:
    for each in reported:
        if each["problem"] is not None:
            yield f"{each['topic']}/{each['channel']}: {each['problem']}"
