"""The envelope, and the Event that consumers read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.contrib.outbox import Event, is_json, wrap
from gnsq_like.errors import DecodeError

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=5), scalars, max_size=3)


@given(values, st.text(max_size=10), st.integers(1, 2**63 - 1))
def test_json_comes_back(value: Any, key: str, sequence: int) -> None:
    body = json.dumps(value).encode()
    assert is_json(body)
    event = Event.of(wrap(body, is_json=True, topic="orders", key=key, sequence=sequence, extensions={}))
    assert (event.key, event.sequence, event.data) == (key, sequence, value)


@given(st.binary())
def test_bytes_come_back(body: bytes) -> None:
    event = Event.of(wrap(body, is_json=False, topic="orders", key="", sequence=None, extensions={}))
    assert (event.key, event.sequence, event.data) == ("", None, body)


def test_it_is_a_cloud_event() -> None:
    extensions = {"traceparent": "00-1"}
    head = json.loads(wrap(b'{"order":7}', is_json=True, topic="orders", key="17", sequence=3, extensions=extensions))
    assert (len(head.pop("id")), len(head.pop("time"))) == (36, 27)
    assert head == {
        "specversion": "1.0",
        "source": "/nsq/orders",
        "type": "orders",
        "partitionkey": "17",
        "sequence": "0000000000000000003",
        "traceparent": "00-1",
        "datacontenttype": "application/json",
        "data": {"order": 7},
    }


def test_ids_differ() -> None:
    bodies = [wrap(b"1", is_json=True, topic="t", key="", sequence=None, extensions={}) for _ in range(100)]
    assert len({Event.of(body).id for body in bodies}) == 100


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[]",
        b"17",
        b"null",
        b'{"id": "x"}',
        b'{"data": 1}',
        b'{"id":"x","data_base64":"?"}',
        b'{"id":"x","data":1,"sequence":"x"}',
    ],
)
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(DecodeError, match="an outbox's envelope"):
        Event.of(body)
