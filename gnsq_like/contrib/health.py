"""The health of Readers and Producers over HTTP, for Kubernetes, load balancers and people.

A Reader is healthy while it runs and is connected to an nsqd, or while no nsqd has the topic: the nsqlookupds have
answered and list none. Conditions that a restart would not cure are reported but count as healthy: backoff (a service
behind the handlers fails), a pause, a growing queue.

A Reader is unhealthy if it was never started, has stopped, reaches none of the nsqds it knows, or has reached no
nsqlookupd since its start. A restart does not bring back an nsqd either: use this as a sign that a process is ready, or
for alerts, and as a reason for a restart only after some minutes.

A Producer with ``fail_fast`` whose nsqds are all unreachable is reported with the reason, and the status is "degraded".
That counts as healthy: pages that publish nothing work, and a load balancer must not remove all processes. The same
holds for the relay of an outbox that cannot publish, or holds back a refused message; its messages are safe in the
database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from wsgiref.types import WSGIEnvironment

from gnsq_like import Producer, Reader

#: The part of Reader.stats() that is in the answer.
_REPORTED = (
    "state",
    "in_flight",
    "max_in_flight",
    "paused",
    "backoff_level",
    "received",
    "finished",
    "requeued",
    "failed",
    "given_up",
    "expired",
    "lost",
)

#: Likewise of Producer.stats().
_REPORTED_OF_PRODUCERS = ("state", "waiting", "confirmed", "refused", "unknown", "not_sent", "retried")

_StartResponse = Callable[[str, list[tuple[str, str]]], object]


class ReportedRelay(Protocol):
    """The members of an outbox's relay that a report uses."""

    name: str

    def stats(self) -> dict[str, Any]: ...


def problem_of(stats: Mapping[str, Any]) -> str | None:
    """The problem of a Reader with these ``stats()``; None if it is healthy. Pure."""
    if stats["state"] == "new":
        return "not started"
    if stats["state"] != "running":
        return str(stats["state"])
    if stats["connections"]:
        return None
    if stats["known"]:
        return f"not connected to any of {', '.join(stats['known'])}"
    if not stats["surveyed"]:
        return "no nsqlookupd has answered yet"
    return None


def report(
    readers: Iterable[Reader], producers: Iterable[Producer] = (), relays: Iterable[ReportedRelay] = ()
) -> tuple[bool, dict[str, Any]]:
    """Whether all Readers are healthy, and the answer about each of these, for JSON. Never switches."""
    reported = []
    for reader in readers:
        stats = reader.stats()
        problem = problem_of(stats)
        if problem is not None and reader.error is not None:
            problem = f"{problem}: {reader.error}"
        reported.append(
            {
                "topic": reader.topic,
                "channel": reader.channel,
                "problem": problem,
                "nsqds": sorted(stats["connections"]),
                **{name: stats[name] for name in _REPORTED},
            }
        )
    healthy = all(each["problem"] is None for each in reported)
    answer: dict[str, Any] = {"status": "ok" if healthy else "failing", "readers": reported}
    if published := [_producer_report(producer) for producer in producers]:
        answer["producers"] = published
    if relayed := [{"name": relay.name, **relay.stats()} for relay in relays]:
        answer["outboxes"] = relayed
    if healthy and any(each["problem"] is not None for each in (*published, *relayed)):
        answer["status"] = "degraded"
    return healthy, answer


def _producer_report(producer: Producer) -> dict[str, Any]:
    stats = producer.stats()
    nsqds = sorted(name for name, connection in stats["connections"].items() if connection["connected"])
    return {
        "problem": stats["away"],
        "nsqds": nsqds,
        **{name: stats[name] for name in _REPORTED_OF_PRODUCERS},
    }


class Health:
    """A WSGI application that answers every GET with the state of these Readers and Producers.

    200 if all Readers are healthy, else 503::

        gevent.pywsgi.WSGIServer(("127.0.0.1", 8001), Health([reader])).start()

    :param readers: the Readers, or a function that returns them, called for each request
    :param producers: the Producers
    :param relays: relays of outboxes
    """

    def __init__(
        self,
        readers: Iterable[Reader] | Callable[[], Iterable[Reader]],
        producers: Iterable[Producer] = (),
        relays: Iterable[ReportedRelay] = (),
    ) -> None:
        self._producers = list(producers)
        self._relays = list(relays)
        if callable(readers):
            self._readers = readers
        else:
            kept = list(readers)
            self._readers = lambda: kept

    def __call__(self, environ: WSGIEnvironment, start_response: _StartResponse) -> list[bytes]:
        """Answer a request; see PEP 3333."""
        healthy, answer = report(self._readers(), self._producers, self._relays)
        body = json.dumps(answer, indent=1).encode() + b"\n"
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        start_response("200 OK" if healthy else "503 Service Unavailable", headers)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
