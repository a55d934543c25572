"""Clicks: a page publishes them to NSQ, and every open page shows all clicks as they are consumed."""

import json
import os
import queue
from collections import deque
from collections.abc import Iterator

import flask
from flask import Response, abort, current_app, render_template, request

from gnsq_like.contrib.flask import NSQ

COLOURS = ("coral", "amber", "mint", "sky", "plum")
#: Number of clicks that a page shows when it is opened.
RECENT = 20
#: Seconds between two signs of life in a stream, by which it also notices a closed page.
HEARTBEAT = 15

if IS_TRACED := "OTEL_TRACES_EXPORTER" in os.environ:
    from opentelemetry.instrumentation import auto_instrumentation

    from gnsq_like.contrib.opentelemetry import Tracing

    nsq = NSQ(tracing=Tracing(cloud_events=["clicks"]))
else:
    nsq = NSQ()


def create_app() -> flask.Flask:
    if IS_TRACED:
        # In each worker, when gevent has patched it. It replaces flask.Flask.
        auto_instrumentation.initialize()
    app = flask.Flask(__name__)
    #: The last clicks, and a queue for each page that is connected to this worker.
    app.extensions["clicks"] = (deque(maxlen=RECENT), set())
    nsq.init_app(app)
    app.register_blueprint(nsq.health_blueprint())

    @app.get("/")
    def index() -> str:
        return render_template("index.html", colours=COLOURS)

    @app.post("/click")
    def click() -> tuple[str, int]:
        colour, name = request.form.get("colour"), request.form.get("name", "").strip()
        if colour not in COLOURS:
            abort(400)
        nsq.publish("clicks", {"colour": colour, "name": name[:30] or "somebody"})
        return "", 204

    @app.get("/stream")
    def stream() -> Response:
        recent, pages = current_app.extensions["clicks"]
        mine: queue.Queue[str] = queue.Queue()
        for event in recent:
            mine.put(event)
        pages.add(mine)

        def events() -> Iterator[str]:
            try:
                yield ": welcome\n\n"  # sends the headers, by which the page knows that it is connected
                while True:
                    try:
                        yield f"data: {mine.get(timeout=HEARTBEAT)}\n\n"
                    except queue.Empty:
                        yield ": still here\n\n"
            finally:
                pages.discard(mine)

        return Response(events(), mimetype="text/event-stream", headers={"Cache-Control": "no-store"})

    return app


# Each worker has its own channel, and so gets every click; nsqd drops the channel when the worker disconnects.
@nsq.reader("clicks", f"page-{os.getpid()}#ephemeral", max_in_flight=100)
def show(message) -> None:
    """Send a click to all pages that are connected to this worker."""
    event = json.dumps({"id": message.id, "at": message.timestamp, "worker": os.getpid(), **json.loads(message.body)})
    recent, pages = current_app.extensions["clicks"]
    recent.append(event)
    for page in list(pages):
        page.put(event)
