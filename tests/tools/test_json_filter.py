"""Which JSON messages are passed on, and what of them."""

import pytest

from gnsq_like.tools.to_nsq import FieldMissing, JSONFilter


@pytest.mark.parametrize(
    ("body", "field", "value", "is_passed"),
    [
        (b'{"a": 1}', "a", "", True),
        (b'{"b": 1}', "a", "", False),
        (b'{"a": null}', "a", "", True),
        (b"[1]", "a", "", False),
        (b"{", "a", "", False),
        (b'{"a": NaN}', "a", "", False),
        (b"null", "a", "", False),
        (b'{"a": "x"}', "a", "x", True),
        (b'{"a": "x "}', "a", "x", False),
        (b'{"a": "1.0"}', "a", "1", False),
        (b'{"a": 1}', "a", "1.0", True),
        (b'{"a": 1e2}', "a", "100", True),
        (b'{"a": true}', "a", "1", False),
        (b'{"a": true}', "a", "true", False),
        (b'{"a": null}', "a", "0", False),
        (b'{"a": [1]}', "a", "1", False),
    ],
)
def test_requirements(body: bytes, field: str, value: str, is_passed: bool) -> None:
    assert JSONFilter(field, value).passed(body) == (body if is_passed else None)


def test_a_missing_field_whose_value_is_required_is_a_failure() -> None:
    with pytest.raises(FieldMissing, match='no field "a"'):
        JSONFilter("a", "1").passed(b"{}")


@pytest.mark.parametrize(
    ("body", "passed"),
    [
        (b'{"c": 3, "b": [1.0, {"z": 2.0, "y": 1.5}], "a": "\xc3\xa4"}', b'{"a":"\xc3\xa4","b":[1,{"y":1.5,"z":2}]}'),
        (b'{"a": 9007199254740993}', b'{"a":9007199254740993}'),
        (b'{"c": 1}', b"{}"),
        (b"null", b"{}"),
        (b"1", None),
    ],
)
def test_fields_to_keep(body: bytes, passed: bytes | None) -> None:
    assert JSONFilter(kept_fields=("b", "a")).passed(body) == passed


def test_without_conditions_anything_passes() -> None:
    assert JSONFilter().passed(b"\xff") == b"\xff"
