"""The Flask application under test, run as processes by gunicorn, by Flask's own server and by ``flask nsq``."""

import os
import time

from flask import Flask, request
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix

from gnsq_like import Message, Reader
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.prometheus import Metrics
from tests.support import notes
from tests.support.notes import note

nsq = NSQ(metrics=Metrics())


def create_app() -> Flask:
    app = Flask("clicks")
    nsq.init_app(app)
    app.register_blueprint(nsq.health_blueprint())
    metrics = nsq.metrics_app
    assert metrics is not None
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/metrics": metrics})  # type: ignore[method-assign]
    note("loaded", app.name)

    @app.post("/publish/<topic>/<name>")
    def publish(topic: str, name: str) -> str:
        note("began", name)
        nsq.publish(topic, name.encode())
        if seconds := request.args.get("seconds"):
            time.sleep(float(seconds))
        note("answered", name)
        return "ok"

    @app.get("/plain")
    def plain() -> str:
        return "a page that publishes nothing"

    return app


def create_wrapped() -> ProxyFix:
    """The application with middleware around it."""
    return ProxyFix(create_app())


@nsq.reader("work", "workers", max_in_flight=int(os.environ.get("WORK_MAX_IN_FLIGHT", "50")))
def work(message: Message) -> None:
    name = message.body.decode()
    note("handling", name)
    notes.work(name)
    note("handled", name)


def readers_of_one_channel() -> list[Reader]:
    return [Reader("work", "workers", work, nsqd_tcp_addresses=os.environ["NSQ_NSQD_TCP_ADDRESSES"])]
