"""The check for django-health-check: with real Readers and a Producer whose nsqd is unreachable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from django.test import RequestFactory, override_settings
from health_check.exceptions import ServiceUnavailable, ServiceWarning
from health_check.views import HealthCheckView

from gnsq_like.contrib.django import producer, readers
from gnsq_like.contrib.django.health import NSQ
from gnsq_like.errors import NotSent
from tests.support.daemons import running_nsqd, wait_for

PATH = "gnsq_like.contrib.django.health.NSQ"


@pytest.fixture(autouse=True)
def no_readers() -> Iterator[None]:
    yield
    readers.made.clear()


def error(check: NSQ) -> Exception | None:
    found: Exception | None = asyncio.run(check.get_result()).error
    return found


def view(*checks: object) -> tuple[int, dict[str, str]]:
    request = RequestFactory().get("/health?format=json")
    response = asyncio.run(HealthCheckView.as_view(checks=checks)(request))
    return response.status_code, json.loads(response.content)


def test_a_process_without_readers_and_publishes_is_healthy() -> None:
    assert error(NSQ()) is None
    status, answer = view(PATH)
    assert (status, list(answer.values())) == (200, ["OK"])


def test_readers() -> None:
    with running_nsqd() as nsqd:
        declared = readers.Declared("mail", "orders", "mail", print, None, {"nsqd_tcp_addresses": nsqd.tcp_address})
        reader = declared.make()
        readers.made.append(reader)
        found = error(NSQ())
        assert isinstance(found, ServiceUnavailable)
        assert str(found) == "Unavailable: orders/mail: not started"
        with reader:
            wait_for(lambda: reader.stats()["connections"], "the connection")
            assert error(NSQ()) is None
    status, answer = view(PATH)
    assert status == 500
    assert "orders/mail: stopped" in str(answer)


def test_publishes_that_fail_at_once_are_a_warning_unless_that_is_unwanted() -> None:
    with override_settings(NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1"}):
        with pytest.raises(NotSent):
            producer().publish("orders", b"x")
        found = error(NSQ())
        assert isinstance(found, ServiceWarning)
        assert "every nsqd is unreachable" in str(found) or "127.0.0.1:1" in str(found)
        assert view((PATH, {"producer": False}))[0] == 200
        assert view((PATH, {}))[0] == 500
