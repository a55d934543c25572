"""The settings TRACING and CLOUD_EVENTS. Traces through servers are tested in test_reloads.py."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from gnsq_like.contrib.django import checks, conf, producer, publish
from gnsq_like.contrib.django.testing import recording
from gnsq_like.contrib.opentelemetry import TracedProducer
from gnsq_like.contrib.shared.envelope import unpack

ADDRESS = {"NSQD_TCP_ADDRESSES": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("topics", "chosen"),
    [("orders", ["orders"]), ("orders, clicks", ["orders", "clicks"]), (["orders"], ["orders"]), ((), []), (None, [])],
)
def test_topics_whose_messages_are_events(topics: Any, chosen: list[str]) -> None:
    with override_settings(NSQ={**ADDRESS, "TRACING": True, "CLOUD_EVENTS": topics}):
        tracing = conf.tracing()
        assert tracing is not None
        assert conf.tracing() is tracing
        made = [topic for topic in ("orders", "clicks", "other") if unpack(tracing.event(topic, b"x")) is not None]
        assert made == chosen
        assert isinstance(producer(), TracedProducer)
        assert checks.check_settings() == []


def test_all_topics() -> None:
    with override_settings(NSQ={**ADDRESS, "TRACING": True, "CLOUD_EVENTS": True}):
        tracing = conf.tracing()
        assert tracing is not None
        assert unpack(tracing.event("any", b"x")) is not None


def test_without_the_setting_nothing_is_traced() -> None:
    assert conf.tracing() is None
    assert not isinstance(producer(), TracedProducer)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"CLOUD_EVENTS": ["orders"]}, 'NSQ["CLOUD_EVENTS"]: it needs TRACING.'),
        ({"TRACING": True, "CLOUD_EVENTS": 7}, 'NSQ["CLOUD_EVENTS"]: it must be of type bool or str or list or tuple.'),
    ],
)
def test_what_is_wrong(wrong: dict[str, Any], text: str) -> None:
    with override_settings(NSQ={**ADDRESS, **wrong}):
        [found] = checks.check_settings()
        assert (found.id, found.msg) == ("gnsq_like.E002", text)


def test_what_is_recorded_are_plain_bodies() -> None:
    with override_settings(NSQ={**ADDRESS, "TRACING": True, "CLOUD_EVENTS": True}), recording() as published:
        publish("orders", {"order": 7})
    assert [each.json() for each in published] == [{"order": 7}]
