"""The application under test: run by gunicorn, by Flask's own server, by ``flask nsq``, as processes.

What it does it notes, a line each, in the file NOTES: those lines are what the tests count.
"""

import os
import time

from flask import Flask, request
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from gnsq_like import Reader
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.prometheus import Metrics

nsq = NSQ(metrics=Metrics())

_notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str, name: str) -> None:
    os.write(_notes, f"{what} {os.getpid()} {name}\n".encode())


def create_app() -> Flask:
    app = Flask("clicks")
    nsq.init_app(app)
    app.register_blueprint(nsq.health_blueprint())
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/metrics": nsq.metrics_app})
    note("loaded", str(time.monotonic()))

    @app.post("/publish/<topic>/<name>")
    def publish(topic: str, name: str) -> str:
        note("began", name)
        nsq.publish(topic, name.encode())
        if seconds := request.args.get("seconds"):
            time.sleep(float(seconds))
        note("answered", name)
        return "ok"

    return app


@nsq.reader("work", "workers", max_in_flight=int(os.environ.get("WORK_MAX_IN_FLIGHT", "50")))
def work(message):
    """Its name says how many seconds the work takes: "0.5-something"."""
    name = message.body.decode()
    note("handling", name)
    time.sleep(float(name.partition("-")[0]))
    note("handled", name)


def readers_of_one_channel():
    return [Reader("work", "workers", work, nsqd_tcp_addresses=os.environ["NSQ_NSQD_TCP_ADDRESSES"])]


if os.environ.get("SLOW_SERVER"):

    @nsq.reader("fetch", "fetchers", max_in_flight=100)
    def fetch(message):
        import requests

        assert requests.get(os.environ["SLOW_SERVER"], timeout=30).text == "slow"
        note("handled", message.body.decode())
