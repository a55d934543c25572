"""Any body that a daemon may send is a value of the kind that was asked for, or Malformed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.http.client import Malformed, json_of, line_of, list_of, object_of, text_of, value_of

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(values)
def test_json_is_what_it_says(value: Any) -> None:
    body = json.dumps(value).encode()
    assert json_of(body) == value
    if isinstance(value, dict):
        assert object_of(body) == value
    else:
        with pytest.raises(Malformed, match="object was expected"):
            object_of(body)


@pytest.mark.parametrize("body", [b"", b"<html>", b"{", b"\xff", b'["\\uD83d"]', b"[" * 100_000])
@pytest.mark.usefixtures("no_garbage_collection")
def test_what_is_not_json(body: bytes) -> None:
    with pytest.raises(Malformed, match="not JSON"):
        json_of(body)


@given(st.binary(max_size=100))
def test_any_bytes_are_text_and_one_short_line_of_it(body: bytes) -> None:
    assert isinstance(text_of(body), str)
    assert len(line_of(body).splitlines()) <= 1


def test_an_errors_line_is_short() -> None:
    assert line_of(b"  two\r\n\tlines  ") == "two lines"
    assert len(line_of(b"x" * 1_000_000)) == 200


RECORD: dict[str, Any] = {"text": "t", "number": 3, "flag": True, "none": None, "list": ["a"], "mixed": ["a", 1]}


def test_fields_of_the_right_kind() -> None:
    assert value_of(RECORD, "text", str) == "t"
    assert value_of(RECORD, "number", int) == 3
    assert value_of(RECORD, "missing", str, "default") == "default"
    assert list_of(RECORD, "list", str) == ["a"]
    assert list_of(RECORD, "none", str) == [], "Go's empty list"


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: value_of(RECORD, "number", str), '"number" is not text'),
        (lambda: value_of(RECORD, "text", int), '"text" is not a whole number'),
        (lambda: value_of(RECORD, "flag", int), '"flag" is not a whole number'),
        (lambda: value_of(RECORD, "none", str), '"none" is not text'),
        (lambda: value_of(RECORD, "missing", int), '"missing" is not a whole number'),
        (lambda: list_of(RECORD, "missing", str), '"missing" is not a list of str'),
        (lambda: list_of(RECORD, "mixed", str), '"mixed" is not a list of str'),
        (lambda: list_of(RECORD, "text", str), '"text" is not a list of str'),
    ],
)
def test_fields_of_another_kind(ask: Callable[[], object], says: str) -> None:
    with pytest.raises(Malformed, match=says):
        ask()
