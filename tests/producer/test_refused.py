"""What one caller has refused costs the connection, and delays no other caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import PublishRefused
from tests.support.auth_server import running_auth_server
from tests.support.daemons import KINDS, Kind, running_nsqd

Make = Callable[..., Producer]

#: Topic, body and defer of a publish that the nsqd of these tests refuses.
_INVALID: dict[str, tuple[str, bytes, float | None]] = {
    "defer": ("t", b"x", 3600.0),
    "topic": ("forbidden", b"x", None),
    "size": ("t", b"x" * 200, None),
}


@pytest.mark.parametrize(("invalid", "callers"), [("defer", "greenlets"), ("topic", "threads"), ("size", "greenlets")])
@pytest.mark.parametrize("kind", KINDS)
def test_others_are_published_meanwhile(make: Make, kind: Kind, invalid: str, callers: str) -> None:
    """If each refusal were a failure, the pauses before the next connection would be longer than a publish waits."""
    lost: list[object] = []
    topic, body, defer = _INVALID[invalid]
    spawn: Any = gevent.spawn if callers == "greenlets" else gevent.get_hub().threadpool.spawn
    with running_auth_server(secret="bob") as auth:
        auth.topics = "t"
        options = {"auth_http_addresses": [auth.address], "max_msg_size": 100, "max_req_timeout": 60}
        with running_nsqd(kind, **options) as nsqd:
            producer = make(
                nsqd.tcp_address,
                auth_secret="secret",
                tls_v1=False,
                timeout=10.0,
                on_disconnect=lambda _, error: lost.append(error),
            )
            producer.publish("t", b"first")
            refused = [spawn(producer.publish, topic, body, defer=defer) for _ in range(9)]
            good = spawn(producer.publish, "t", b"valid")
            good.get()
            for each in refused:
                with pytest.raises(PublishRefused):
                    each.get()
            assert len(lost) == len(refused)
            assert producer.stats()["not_sent"] == 0


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_refusal_names_the_size_the_topic_and_the_delay(replicas: int) -> None:
    """nsqd's own text does not always."""
    with running_nsqd(max_msg_size=10) as first, running_nsqd(max_msg_size=10) as second:
        addresses = [first.tcp_address, second.tcp_address][:replicas]
        with Producer(addresses, replicas=replicas) as producer:
            with pytest.raises(PublishRefused, match="the publish of 11 bytes to t: E_BAD_MESSAGE PUB message"):
                producer.publish("t", b"x" * 11)
            with pytest.raises(PublishRefused, match=r"11 bytes to t, deferred by 2\.5 s: E_BAD_MESSAGE") as refused:
                producer.publish("t", b"x" * 11, defer=2.5)
            with pytest.raises(PublishRefused, match="2 messages in 24 bytes to t: E_BAD_MESSAGE"):
                producer.multi_publish("t", [b"x", b"x" * 11])
    assert refused.value.description == "11 bytes to t, deferred by 2.5 s"
