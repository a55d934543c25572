"""A Flask application whose requests, publishes and handlers are traced, with its readers in the same process."""

from typing import Any

from asgiref.wsgi import WsgiToAsgi
from flask import Flask
from opentelemetry import trace

from gnsq_like import Message
from gnsq_like.contrib.asgi import with_readers
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.opentelemetry import Tracing
from tests.support.notes import SUBJECT, note, note_spans

nsq = NSQ(tracing=Tracing(cloud_events=["orders"]))
_tracer = trace.get_tracer("tests")


def create_app() -> Flask:
    note_spans()
    app = Flask("traced")
    nsq.init_app(app)

    @app.post("/publish/orders/<name>")
    def publish(name: str) -> str:
        with _tracer.start_as_current_span("request", attributes={SUBJECT: name}):
            nsq.publish("orders", {"name": name})
        return "ok"

    return app


def create_asgi() -> Any:
    """The application for an ASGI server, with the readers in its processes."""
    return with_readers(WsgiToAsgi(create_app()), nsq.make_readers)


@nsq.reader("orders", "book", max_in_flight=50)
def book(message: Message) -> None:
    name = message.json()["name"]
    trace.get_current_span().set_attribute(SUBJECT, name)
    note("booked", name)
