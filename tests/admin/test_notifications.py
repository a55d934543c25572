"""Notifications: sent in their order, and none is waited for."""

from __future__ import annotations

import json
import logging

import pytest

from gnsq_like.admin import notifications
from gnsq_like.admin.notifications import Notifications
from tests.support.daemons import wait_for
from tests.support.scripted_http import Asked, Peer, always, response, scripted


def call(function: object, *arguments: object) -> None:
    assert callable(function)
    function(*arguments)


def test_the_endpoint_gets_all_in_their_order() -> None:
    with scripted(always(response())) as endpoint:
        with Notifications(f"http://ada:b@{endpoint.address}/a?key=1", 60.0, call) as hook:
            for number in range(30):
                hook.send({"number": number})
            wait_for(lambda: len(endpoint.asked) == 30)
        assert [json.loads(each.body) for each in endpoint.asked] == [{"number": number} for number in range(30)]
        assert {each.line for each in endpoint.asked} == {"POST /a?key=1 HTTP/1.1"}
        assert {each.headers["authorization"] for each in endpoint.asked} == {"Basic YWRhOmI="}


def test_one_that_fails_costs_its_entry_only(caplog: pytest.LogCaptureFixture) -> None:
    def answer(asked: Asked) -> bytes:
        return response(b"", "500 Oops") if b"first" in asked.body else response()

    with (
        scripted(always(answer)) as endpoint,
        Notifications(f"http://{endpoint.address}", 60.0, call) as hook,
        caplog.at_level(logging.ERROR),
    ):
        for name in ("first", "second"):
            hook.send({"name": name})
        wait_for(lambda: len(endpoint.asked) == 2 and caplog.messages)
        [message] = caplog.messages
        assert "answered with status 500" in message


def test_more_than_an_endpoint_that_hangs_can_take_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    def hang(peer: Peer) -> None:
        peer.request()
        peer.hang()

    with scripted(hang) as endpoint, Notifications(f"http://{endpoint.address}", 0.5, call) as hook:
        for number in range(notifications.MOST_WAITING + 1):
            hook.send({"number": number})
        assert [f"{notifications.MOST_WAITING}" in each for each in caplog.messages] == [True]
        wait_for(lambda: len(caplog.messages) == notifications.MOST_WAITING + 1)
