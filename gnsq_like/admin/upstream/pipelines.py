"""The Spark pipelines whose status is watched (docs/pipeline.rst): asked every few seconds, in the core's thread.

Pages show the results of the last round, so a pipeline that does not answer delays no page. Its last figures stay, with
their age.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore

from gnsq_like.admin.history.alerts import Alert, Alerts
from gnsq_like.cluster.rounds import Upstreams
from gnsq_like.http.client import HTTPClient
from gnsq_like.http.decode import Malformed, list_of, value_of

logger = logging.getLogger(__name__)

#: Seconds between two rounds, and for one.
EVERY, TIMEOUT = 5.0, 3.0
#: Limits of an answer: bytes in all, characters of a text, number of problems and of nsqds.
MAX_ANSWER_BYTES = 1 << 20
_MOST_TEXT, _MOST_PROBLEMS, _MOST_NSQDS = 300, 20, 500


@dataclass(frozen=True)
class PipelineNsqd:
    """An nsqd of a topic; ``away_since`` is None while it answers."""

    topic: str
    channel: str
    address: str
    depth: float | None
    in_flight: float | None
    away_since: float | None


@dataclass(frozen=True)
class PipelineFigures:
    """The status that a pipeline reports. Durations are in seconds; None is unknown."""

    state: str
    #: ok, failing or starting.
    status: str
    problems: tuple[str, ...]
    lag: float | None
    depth: float | None
    rate: float | None
    rejected_share: float | None
    latency: Mapping[str, float | None]
    messages: float | None
    rejected: float | None
    batches: float | None
    started_at: float | None
    nsqds: tuple[PipelineNsqd, ...]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline at one moment."""

    name: str
    address: str
    #: Those of its last answer; None before the first one.
    figures: PipelineFigures | None = None
    #: When it answered last, and why it does not now; "" if it does, or was not asked yet.
    answered_at: float | None = None
    problem: str = ""

    @property
    def is_well(self) -> bool:
        """Whether it answers, without problems."""
        return not self.problem and self.figures is not None and self.figures.status == "ok"


class PipelineClient(HTTPClient):
    """Asks a run of a pipeline."""

    def status(self) -> PipelineFigures:
        """Its figures. May switch."""
        return self._get_object("/status", {}, read_figures)


class Pipelines:
    """All pipelines. Belongs to the core's thread, but :attr:`present` may be read anywhere.

    :param addresses: "host:port" or URLs, by name
    :param make: makes a client for an address and a timeout
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        make: Callable[[str, float], PipelineClient],
    ) -> None:
        self._upstreams = Upstreams(make, TIMEOUT)
        #: By name; replaced as a whole.
        self.present: Mapping[str, Pipeline] = {name: Pipeline(name, address) for name, address in addresses.items()}
        #: Rounds so far, and held during one: the answers of an older round never replace those of a newer one.
        self.rounds = 0
        self._asking = BoundedSemaphore()
        self.alerts = Alerts()

    def run(self) -> None:
        """Greenlet of the core's thread: ask. May switch."""
        while self.present:
            try:
                self.ask(time.time())
            except Exception:
                logger.exception("asking the pipelines failed")
            gevent.sleep(EVERY)

    def ask(self, now: float) -> None:
        """Poll all of them once, after a round that is under way. May switch."""
        with self._asking:
            self._ask(now)

    def _ask(self, now: float) -> None:
        found = self._upstreams.ask((each.address for each in self.present.values()), PipelineClient.status)
        self.present = {
            name: replace(known, figures=found.answers[known.address], answered_at=now, problem="")
            if known.address in found.answers
            else replace(known, problem=str(found.failures[known.address]))
            for name, known in self.present.items()
        }
        self.rounds += 1
        self.alerts.update(
            (
                Alert("pipeline_down", f"pipeline {each.name} does not answer", node=each.address)
                for each in self.present.values()
                if each.problem
            ),
            now,
        )

    def close(self) -> None:
        """Close all connections."""
        self._upstreams.close()


def read_figures(found: dict[str, Any]) -> PipelineFigures:
    """The figures in a status; raises Malformed."""
    latency = found.get("latency") or {}
    if not isinstance(latency, dict):
        raise Malformed('"latency" is not an object')
    names = ("lag", "depth", "rate", "rejected_share", "messages", "rejected", "batches", "started_at")
    return PipelineFigures(
        state=_text(found, "state"),
        status=_text(found, "status"),
        problems=tuple(_text(each, "text") for each in list_of(found, "problems", dict)[:_MOST_PROBLEMS]),
        latency={name: _number(latency, name) for name in ("p50", "p95", "p99")},
        nsqds=tuple(islice(_nsqds(found), _MOST_NSQDS)),
        **{name: _number(found, name) for name in names},
    )


def _nsqds(found: dict[str, Any]) -> Iterator[PipelineNsqd]:
    for topic in list_of(found, "topics", dict):
        for nsqd in list_of(topic, "nsqds", dict):
            yield PipelineNsqd(
                _text(topic, "topic"),
                _text(topic, "channel"),
                _text(nsqd, "address"),
                *(_number(nsqd, name) for name in ("depth", "in_flight", "away_since")),
            )


def _text(found: dict[str, Any], name: str) -> str:
    return value_of(found, name, str)[:_MOST_TEXT]


def _number(found: dict[str, Any], name: str) -> float | None:
    value = found.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise Malformed(f'"{name}" is not a number')
    return value
