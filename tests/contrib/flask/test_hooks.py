"""All hooks of a Reader run in a context of the application."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask, current_app, g

from gnsq_like import Message
from gnsq_like.contrib.flask import NSQ
from gnsq_like.errors import InvalidOption
from tests.support.daemons import wait_for
from tests.support.web import PATIENT


def test_hooks_run_in_a_context_of_the_application() -> None:
    nsq = NSQ()
    app = Flask("shop")
    app.config.update({f"NSQ_{name}": value for name, value in PATIENT.items()})
    nsq.init_app(app)
    called: dict[str, int] = {}

    def hook(name: str, count: int) -> Callable[..., None]:
        def one(first: object) -> None:
            assert "seen" not in g, "each call has a context of its own"
            g.seen = True
            called[name] = called.get(name, 0) + (current_app.name == "shop")

        def two(first: object, second: object) -> None:
            one(first)

        return one if count == 1 else two

    @nsq.reader(
        "orders",
        "book",
        max_attempts=2,
        max_in_flight=2,
        default_requeue_delay=0,
        max_backoff_duration=0.01,
        backoff_multiplier=0.001,
        on_connect=hook("on_connect", 1),
        on_disconnect=hook("on_disconnect", 2),
        on_backoff=hook("on_backoff", 2),
        on_finish=hook("on_finish", 1),
        on_requeue=hook("on_requeue", 2),
        on_failure=hook("on_failure", 2),
        on_giving_up=hook("on_giving_up", 1),
    )
    def book(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("as it should")

    with nsq.embedded(app) as nsqd:
        nsq.multi_publish("orders", [b"good", b"bad"])
        nsqd.wait_until("orders", "book", left=0)
        wait_for(lambda: called.get("on_finish", 0) >= 1 and "on_giving_up" in called, "the hooks")
    names = {"on_connect", "on_backoff", "on_finish", "on_requeue", "on_failure", "on_giving_up", "on_disconnect"}
    wait_for(lambda: set(called) == names, "all of them")


def test_a_hook_that_takes_other_arguments_is_refused_when_it_is_declared() -> None:
    with pytest.raises(InvalidOption, match="on_requeue"):
        NSQ().reader("orders", "book", on_requeue=lambda message: None)(print)  # type: ignore[arg-type, misc]
