"""Whether Readers are healthy, for whoever asks over HTTP: Kubernetes, a load balancer, a person.

A Reader is healthy while it runs and is connected to an nsqd, or there is none to connect to: the nsqlookupds
have answered, and know nobody who has the topic. What a restart would not cure is no illness: backoff (what
stands behind the handlers fails), a pause, a growing queue. It is told beside, for those who want to look.

Not healthy is a Reader that was never started, has stopped, or reaches no nsqd although there are some, or
no nsqlookupd ever since its start. nsqd being away is nothing a restart cures either: use this to say that a
process is ready, or to alert, and as a reason to restart it only after some minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gnsq_like import Reader

#: The part of Reader.stats() that the answer repeats.
_TOLD = (
    "state",
    "in_flight",
    "max_in_flight",
    "backoff_level",
    "received",
    "finished",
    "requeued",
    "failed",
    "given_up",
)

_StartResponse = Callable[[str, list[tuple[str, str]]], object]


def problem_of(stats: Mapping[str, Any]) -> str | None:
    """What is wrong with a Reader, by its ``stats()``; None if nothing is. Pure."""
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


def report(readers: Iterable[Reader]) -> tuple[bool, dict[str, Any]]:
    """Whether all are healthy, and what there is to say about each, ready for JSON. Never switches."""
    told = []
    for reader in readers:
        stats = reader.stats()
        problem = problem_of(stats)
        if problem is not None and reader.error is not None:
            problem = f"{problem}: {reader.error}"
        told.append(
            {
                "topic": reader.topic,
                "channel": reader.channel,
                "problem": problem,
                "nsqds": sorted(stats["connections"]),
                **{name: stats[name] for name in _TOLD},
            }
        )
    healthy = all(each["problem"] is None for each in told)
    return healthy, {"status": "ok" if healthy else "failing", "readers": told}


class Health:
    """A WSGI application that answers every GET with the state of these Readers.

    200 if all are healthy, else 503::

        gevent.pywsgi.WSGIServer(("127.0.0.1", 8001), Health([reader])).start()

    :param readers: the Readers, or a function that gives them, asked each time
    """

    def __init__(self, readers: Iterable[Reader] | Callable[[], Iterable[Reader]]) -> None:
        if callable(readers):
            self._readers = readers
        else:
            kept = list(readers)
            self._readers = lambda: kept

    def __call__(self, environ: Mapping[str, Any], start_response: _StartResponse) -> list[bytes]:
        """Answer; see PEP 3333."""
        healthy, answer = report(self._readers())
        body = json.dumps(answer, indent=1).encode() + b"\n"
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        start_response("200 OK" if healthy else "503 Service Unavailable", headers)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
