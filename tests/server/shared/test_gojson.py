"""JSON objects as Go reads them into a struct."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.shared.gotext import INT32_MAX, INT64_MAX, read_object

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(values)
def test_types_are_strict_and_null_is_the_default(value: Any) -> None:
    found = read_object(json.dumps({"Name": value}).encode())
    for read, fits, default in (
        (found.text, isinstance(value, str), ""),
        (found.flag, isinstance(value, bool), False),
        (found.number, type(value) is int and -INT64_MAX - 1 <= value <= INT64_MAX, 0),
    ):
        if fits:
            assert read("name") == value
        elif value is None:
            assert read("name") == default
        else:
            with pytest.raises(ValueError, match="wrong type"):
                read("name")


def test_lists() -> None:
    found = read_object(b'{"texts": ["a", "b"], "objects": [{"X": 1}, null], "mixed": ["a", 1], "none": null}')
    assert found.texts("texts") == ["a", "b"]
    assert [each.number("x") for each in found.objects("objects")] == [1, 0]
    assert (found.texts("none"), found.texts("missing"), found.objects("missing")) == ([], [], [])
    with pytest.raises(ValueError, match="not a list of strings"):
        found.texts("mixed")
    with pytest.raises(ValueError, match="not a JSON object"):
        found.objects("mixed")


def test_names_match_in_any_case_and_the_last_value_counts() -> None:
    found = read_object(b'{"hostname": "a", "HostName": "b", "port": 1, "port": 2}')
    assert (found.text("hostname"), found.number("port")) == ("b", 2)


def test_half_a_surrogate_pair_is_replaced() -> None:
    found = read_object(b'{"a": "x\\ud800y", "b": ["\\udc00"], "c": "\\ud83d\\ude00"}')
    assert (found.text("a"), found.texts("b"), found.text("c")) == ("x\ufffdy", ["\ufffd"], "\U0001f600")


def test_numbers_may_have_a_smaller_bound() -> None:
    found = read_object(b'{"most": 2147483647, "more": 2147483648, "least": -2147483648}')
    assert (found.number("most", INT32_MAX), found.number("least", INT32_MAX)) == (INT32_MAX, -INT32_MAX - 1)
    with pytest.raises(ValueError, match="wrong type"):
        found.number("more", INT32_MAX)


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b'"x"', b"{", b'{"a": NaN}', b"[" * 100_000, b"{}{}"])
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_object(body)


def test_null_is_an_empty_object_and_bad_utf8_is_replaced() -> None:
    assert read_object(b"null").text("a") == ""
    assert read_object(b'{"a": "\xff"}').text("a") == "\ufffd"
