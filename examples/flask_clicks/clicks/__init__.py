"""Clicks: a page publishes them to NSQ, and every open page shows all of them as they come back."""

import json
import os
import queue
from collections import deque
from collections.abc import Iterator

from flask import Flask, Response, abort, current_app, render_template, request

from gnsq_like.contrib.flask import NSQ

COLOURS = ("coral", "amber", "mint", "sky", "plum")
#: Clicks that a page shows when it is opened.
RECENT = 20
#: Seconds after which a stream says that it lives; that is also when it finds out that nobody listens any more.
HEARTBEAT = 15

nsq = NSQ()


def create_app() -> Flask:
    app = Flask(__name__)
    #: What came last, and a queue for each page that is open at this worker.
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
                yield ": welcome\n\n"  # the headers leave with it: only then the page knows that it is connected
                while True:
                    try:
                        yield f"data: {mine.get(timeout=HEARTBEAT)}\n\n"
                    except queue.Empty:
                        yield ": still here\n\n"
            finally:
                pages.discard(mine)

        return Response(events(), mimetype="text/event-stream", headers={"Cache-Control": "no-store"})

    return app


# A channel of its own for each worker, so that each gets every click for its pages; nsqd forgets it with the worker.
@nsq.reader("clicks", f"page-{os.getpid()}#ephemeral", max_in_flight=100)
def show(message) -> None:
    """To all pages that are open at this worker."""
    event = json.dumps({"id": message.id, "at": message.timestamp, "worker": os.getpid(), **json.loads(message.body)})
    recent, pages = current_app.extensions["clicks"]
    recent.append(event)
    for page in list(pages):
        page.put(event)
