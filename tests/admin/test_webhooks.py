"""Webhooks: sent in their order, by a greenlet, and none is waited for."""

from __future__ import annotations

import json
import logging

import gevent
import pytest

from gnsq_like.admin.webhooks import Webhooks
from tests.support.scripted_http import Asked, Peer, always, response, scripted


def call(function: object, *arguments: object) -> None:
    assert callable(function)
    function(*arguments)


def test_all_endpoints_get_all_in_their_order() -> None:
    with scripted(always(response())) as first, scripted(always(response())) as second:
        hooks = Webhooks([f"http://{first.address}/a?key=1", f"http://{second.address}"], 10.0, call)
        sender = gevent.spawn(hooks.run)
        for number in range(3):
            hooks.send({"number": number})
        assert hooks.drain(30)
        assert [json.loads(each.body) for each in first.asked] == [{"number": number} for number in range(3)]
        assert [each.body for each in second.asked] == [each.body for each in first.asked]
        assert {each.line for each in first.asked} == {"POST /a?key=1 HTTP/1.1"}
        assert {each.line for each in second.asked} == {"POST / HTTP/1.1"}
        sender.kill()
        hooks.close()


def test_one_that_fails_costs_its_entry_only(caplog: pytest.LogCaptureFixture) -> None:
    def answer(asked: Asked) -> bytes:
        return response(b"", "500 Oops") if b"first" in asked.body else response()

    with scripted(always(answer)) as endpoint:
        hooks = Webhooks([f"http://{endpoint.address}"], 10.0, call)
        sender = gevent.spawn(hooks.run)
        with caplog.at_level(logging.ERROR):
            for name in ("first", "second"):
                hooks.send({"name": name})
            assert hooks.drain(30)
        assert len(endpoint.asked) == 2
        [message] = caplog.messages
        assert "answered with status 500" in message
        sender.kill()
        hooks.close()


def hang(peer: Peer) -> None:
    peer.request()
    peer.hang()


def test_an_endpoint_that_hangs_is_waited_for_no_longer_than_asked() -> None:
    with scripted(hang) as endpoint:
        hooks = Webhooks([f"http://{endpoint.address}"], 60.0, call)
        sender = gevent.spawn(hooks.run)
        hooks.send({})
        assert not hooks.drain(0.05)
        sender.kill()
        hooks.close()


def test_without_endpoints_nothing_is_kept() -> None:
    hooks = Webhooks([], 10.0, call)
    hooks.send({})
    hooks.run()
    assert hooks.drain(0)
