"""The web applications of outage.py, for gunicorn: a page that publishes, one that does not, and /healthz."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from gnsq_like.errors import NSQError


def _tried(publish: Callable[..., object]) -> dict[str, Any]:
    began = time.monotonic()
    error = None
    try:
        publish("outage", b"x")
    except NSQError as exc:
        error = f"{type(exc).__name__}: {exc}"
    return {"seconds": time.monotonic() - began, "error": error}


def flask_site() -> Any:
    from flask import Flask

    from gnsq_like.contrib.flask import NSQ

    app = Flask(__name__)
    nsq = NSQ(app)
    app.register_blueprint(nsq.health_blueprint())

    @app.post("/publish")
    def publish() -> dict[str, Any]:
        return _tried(nsq.publish)

    @app.get("/page")
    def page() -> str:
        return "page"

    return app


def django_site() -> Any:
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    def publish(request: HttpRequest) -> HttpResponse:
        from gnsq_like.contrib import django as nsq

        return HttpResponse(json.dumps(_tried(nsq.publish)))

    def page(request: HttpRequest) -> HttpResponse:
        return HttpResponse("page")

    def healthz(request: HttpRequest) -> HttpResponse:
        from gnsq_like.contrib.django import healthz

        return healthz(request)

    settings.configure(
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=["gnsq_like.contrib.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        ROOT_URLCONF=(path("publish", publish), path("page", page), path("healthz", healthz)),
        NSQ={},
    )
    return get_wsgi_application()
