"""Envelopes come back as they were packed, and CloudEvents' own SDK reads them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.contrib.outbox import Event
from gnsq_like.contrib.shared.envelope import is_json, pack, pack_for_outbox, unpack
from gnsq_like.errors import DecodeError

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1,b=2"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def packed(data: bytes, *, as_json: bool = False) -> bytes:
    return pack(data, is_json=as_json, source="shop", type="orders", extensions=TRACE)


@given(st.binary(min_size=1))
def test_bytes_come_back_and_the_sdk_reads_them(data: bytes) -> None:
    body = packed(data)
    event = unpack(body)
    assert event is not None
    assert event.data == data
    theirs = JSONFormat().read(None, body)
    assert theirs.get_data() == data
    assert (theirs.get_source(), theirs.get_type(), theirs.get_id()) == ("shop", "orders", event.attributes["id"])
    assert {name: theirs.get_extension(name) for name in TRACE} == TRACE
    time = theirs.get_time()
    assert time is not None
    assert time.isoformat(timespec="microseconds") == event.attributes["time"].replace("Z", "+00:00")


@given(json_values)
def test_json_comes_back_as_it_was_written_and_the_sdk_reads_it(value: Any) -> None:
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    body = packed(data, as_json=True)
    event = unpack(body)
    assert event is not None
    assert event.data == data
    assert JSONFormat().read(None, body).get_data() == json.loads(data)


def test_an_event_is_json_that_other_languages_read() -> None:
    body = json.loads(packed(b"\xff"))
    assert base64.b64decode(body.pop("data_base64")) == b"\xff"
    assert len(body.pop("id")) == 36
    assert body.pop("time").endswith("Z")
    assert body == {
        "specversion": "1.0",
        "source": "shop",
        "type": "orders",
        "datacontenttype": "application/octet-stream",
        **TRACE,
    }
    body = json.loads(packed(b'{"n":1}', as_json=True))
    assert (body["data"], body["datacontenttype"]) == ({"n": 1}, "application/json")


def test_each_event_has_an_id_of_its_own() -> None:
    assert len({json.loads(packed(b"x"))["id"] for _ in range(100)}) == 100


HEAD = b'{"specversion":"1.0","id":"1","source":"s","type":"t"'


def test_data_and_attributes_with_signs_of_json_come_back() -> None:
    data = b'{"a":1,"data":[{"data_base64":"x"}],"n":1.10}'
    body = pack(data, is_json=True, source='a",data":1', type="t", extensions={"x": '{"data":"\\'})
    event = unpack(body)
    assert event is not None
    assert (event.data, event.attributes["source"], event.attributes["x"]) == (data, 'a",data":1', '{"data":"\\')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain",
        HEAD,
        HEAD + b"}",
        HEAD + b',"data":1',
        HEAD + b',"data":1}x',
        HEAD + b',"data":1,"subject":"a later member"}',
        HEAD + b',"data":nothing}',
        HEAD + b',"data":"\xff"}',
        HEAD + b',"data":' + b"[" * 100_000 + b"}",
        HEAD + b',"data_base64":"?"}',
        HEAD + b',"data_base64":7}',
        HEAD.replace(b"1.0", b"2.0") + b',"data":1}',
        HEAD.replace(b'"s"', b"7") + b',"data":1}',
        b'{ "type":"t", "source":"s", "id":"1", "specversion":"1.0", "data":1}',
    ],
)
def test_other_bodies_are_not_opened(body: bytes) -> None:
    assert unpack(body) is None


@given(st.binary())
def test_unpacking_raises_nothing(data: bytes) -> None:
    unpack(data)
    unpack(HEAD + data + b"}")
    unpack(HEAD + b',"data":' + data + b"}")
    unpack(HEAD + b',"data_base64":"' + data + b'"}')


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"1", True), (b'{"a": [null]}', True), (b"NaN", False), (b"", False), (b"\xff", False), (b"[" * 100_000, False)],
)
def test_what_is_json(data: bytes, expected: bool) -> None:
    assert is_json(data) is expected


# -- of an outbox ------------------------------------------------------------------------------------


@given(json_values, st.text(max_size=10), st.integers(1, 2**63 - 1))
def test_an_outboxs_event_comes_back(value: Any, key: str, sequence: int) -> None:
    body = json.dumps(value).encode()
    event = Event.of(pack_for_outbox(body, is_json=True, topic="orders", key=key, sequence=sequence, extensions={}))
    assert (event.key, event.sequence, event.data) == (key, sequence, value)


def test_an_outboxs_envelope_is_a_cloud_event() -> None:
    extensions = {"traceparent": "00-1"}
    head = json.loads(
        pack_for_outbox(b'{"order":7}', is_json=True, topic="orders", key="17", sequence=3, extensions=extensions)
    )
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


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        HEAD + b',"data":1}',
        HEAD.replace(b'"s"', b'"/nsq/t"') + b',"sequence":"x","data":1}',
    ],
)
def test_an_event_is_of_an_outbox_only(body: bytes) -> None:
    with pytest.raises(DecodeError, match="an outbox's envelope"):
        Event.of(body)
