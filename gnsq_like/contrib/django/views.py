"""A page with the state of this process: ``path("healthz", gnsq_like.contrib.django.healthz)`` in ``urls.py``."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse

from gnsq_like.contrib.django import publishing, readers
from gnsq_like.contrib.django.outbox import relaying


def healthz(request: HttpRequest) -> JsonResponse:
    """Report this process's readers and Producer; see ``gnsq_like.contrib.health``. Never switches."""
    from gnsq_like.contrib.health import report  # loads gevent

    healthy, answer = report(readers.made, publishing.made_producers(), relaying.made)
    return JsonResponse(answer, status=200 if healthy else 503, headers={"Cache-Control": "no-store"})
