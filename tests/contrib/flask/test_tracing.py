"""A request, its publish and its handler are one trace, in one process and under gunicorn."""

from __future__ import annotations

import pytest
from flask import Flask

from gnsq_like import Message
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.opentelemetry import Tracing
from tests.support.spans import Seen, parent_id, span_id
from tests.support.web import PATIENT


@pytest.mark.parametrize("batch", [None, {"size": 1}])
def test_readers_and_the_producer_are_traced(batch: dict[str, int] | None) -> None:
    seen = Seen()
    nsq = NSQ(tracing=Tracing(cloud_events=["orders"], **seen.providers))
    app = Flask("shop")
    app.config.update({"NSQ_DECODER": "json"} | {f"NSQ_{name}": value for name, value in PATIENT.items()})
    nsq.init_app(app)
    bodies: list[object] = []

    @nsq.reader("orders", "book", batch=batch)
    def book(given: Message | list[Message]) -> None:
        message = given[0] if isinstance(given, list) else given
        bodies.append((message.body, message.data))

    with nsq.embedded(app) as nsqd:
        nsq.publish("orders", {"order": 7})
        nsqd.wait_until("orders", "book", left=0)
    assert bodies == [(b'{"order": 7}', {"order": 7})]
    [send], [process] = seen.spans("send orders"), seen.spans("process orders")
    if batch is None:
        assert parent_id(process) == span_id(send)
    assert [link.context.span_id for link in process.links] == [span_id(send)]


def test_what_is_recorded_are_plain_bodies() -> None:
    nsq = NSQ(tracing=Tracing(cloud_events=["orders"]))
    app = Flask("shop")
    app.config["NSQ_RECORD"] = True
    nsq.init_app(app)
    nsq.publish("orders", {"order": 7})
    assert nsq.outbox[0].json() == {"order": 7}
