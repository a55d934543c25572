"""Events: those made here are read by CloudEvents' own SDK, those of other languages are read here."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_like.contrib.cloudevents import is_json, pack, unpack

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1,b=2"}

#: What another language may write: the required attributes, with spaces, and in another order.
FOREIGN = '{ "type" : "t", "source":"s",\n\t"data" : %s , "id":"1", "specversion":"1.0"%s }'

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def packed(data: bytes, *, as_json: bool = False) -> bytes:
    return pack(data, is_json=as_json, source="shop", type="orders", extensions=TRACE)


def foreign(data: str, more: str = "") -> bytes:
    return (FOREIGN % (data, more)).encode()


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


@settings(max_examples=50)
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


@pytest.mark.parametrize(
    ("data", "more", "expected"),
    [
        ('{"price" : 1.10, "n": 12345678901234567890.5}', "", b'{"price" : 1.10, "n": 12345678901234567890.5}'),
        ('"a string of JSON"', "", b'"a string of JSON"'),
        ('"text \\u00e9"', ', "datacontenttype": "text/plain; charset=utf-8"', "text é".encode()),
        ('"<a/>"', ', "datacontenttype": "application/xml"', b"<a/>"),
        ('"j"', ', "datacontenttype": "application/vnd.shop+json"', b'"j"'),
        ("null", "", b"null"),
        ('"x"', ', "data_base64": "AQI="', b"\x01\x02"),
    ],
)
def test_what_other_languages_write(data: str, more: str, expected: bytes) -> None:
    event = unpack(foreign(data, more))
    assert event is not None
    assert event.data == expected
    assert event.attributes["id"] == "1"


def test_an_event_need_not_have_data() -> None:
    event = unpack(b'{"specversion":"1.0","id":"1","source":"s","type":"t"}')
    assert event is not None
    assert event.data == b""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain",
        b'["specversion"]',
        b'{"specversion": "1.0"}',
        b'{"specversion": "2.0", "id": "1", "source": "s", "type": "t"}',
        b'{"specversion": "1.0", "id": 1, "source": "s", "type": "t"}',
        b'{"specversion": "1.0", "id": "", "source": "s", "type": "t"}',
        foreign("1")[:-1],
        foreign("1") + b"x",
        foreign("1").replace(b' , "id"', b' ,, "id"'),
        foreign("1", ","),
        foreign("nothing"),
        foreign("1", ', "data_base64": "?"'),
        foreign("1", ', "data_base64": 7'),
        foreign('"\\ud800"', ', "datacontenttype": "text/plain"'),
        foreign("[" * 100_000),
        foreign('"\xff"').decode("utf-8").encode("latin-1"),
        b'{1: 2, "specversion": "1.0"}',
    ],
)
def test_what_is_no_event(body: bytes) -> None:
    assert unpack(body) is None


@given(st.binary())
def test_unpacking_raises_nothing(data: bytes) -> None:
    unpack(data)
    unpack(b'{"specversion":' + data)
    unpack(foreign("1").replace(b"1.0", data))


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"1", True), (b'{"a": [null]}', True), (b"NaN", False), (b"", False), (b"\xff", False), (b"[" * 100_000, False)],
)
def test_what_is_json(data: bytes, expected: bool) -> None:
    assert is_json(data) is expected
