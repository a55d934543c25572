"""A Flask application whose requests, publishes and handlers are traced, with its readers in the same process."""

from flask import Flask
from opentelemetry import trace

from gnsq_like import Message
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.opentelemetry import Tracing
from tests.support import traced

nsq = NSQ(tracing=Tracing(cloud_events=["orders"]))
_tracer = trace.get_tracer("tests")


def create_app() -> Flask:
    traced.install()
    app = Flask("traced")
    nsq.init_app(app)

    @app.get("/publish/orders/<name>")
    def publish(name: str) -> str:
        with _tracer.start_as_current_span("request"):
            nsq.publish("orders", {"name": name})
        return "ok"

    @app.get("/spans")
    def spans() -> str:
        return traced.page()

    return app


@nsq.reader("orders", "book")
def book(message: Message) -> None:
    with _tracer.start_as_current_span("query"):
        assert message.json() == {"name": "tea"}
