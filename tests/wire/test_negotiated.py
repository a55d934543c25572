"""The answers to IDENTIFY and AUTH: read in our units, or refused as what they are not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import ProtocolError
from gnsq_like.wire.negotiated import Authorized, Negotiated
from tests.support.peer import ANSWER, BAD_ANSWERS

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def read(**answer: object) -> Negotiated:
    return Negotiated.from_payload(json.dumps(answer).encode())


def test_durations_are_in_seconds() -> None:
    assert Negotiated.from_payload(ANSWER) == Negotiated(
        version="1.3.0",
        max_rdy_count=2500,
        msg_timeout=60.0,
        max_msg_timeout=900.0,
        sample_rate=0,
        output_buffer_size=16384,
        output_buffer_timeout=0.25,
        auth_required=False,
        deflate_level=6,
        max_deflate_level=6,
        counts_rdy_down=False,
    )


def test_what_it_does_not_say_is_nsqds_default() -> None:
    assert Negotiated.from_payload(b"{}") == Negotiated()
    assert Negotiated.from_payload(b"OK") == Negotiated(counts_rdy_down=True)
    assert (Negotiated().max_rdy_count, Negotiated().msg_timeout) == (2500, 60.0)


@pytest.mark.parametrize(
    ("version", "counts_down"),
    [("0.2.31", True), ("0.2.30-alpha", True), ("0.3.0", False), ("1.3.0", False), ("dev", False), ("", False)],
)
def test_nsqd_before_0_3_counts_rdy_down(version: str, counts_down: bool) -> None:
    assert read(version=version).counts_rdy_down is counts_down


@pytest.mark.parametrize(("level", "expected"), [(0, 6), (1, 1), (9, 9), (42, 9)])
def test_a_deflate_level_that_zlib_takes(level: int, expected: int) -> None:
    assert read(deflate_level=level).deflate_level == expected


@pytest.mark.parametrize("value", [1, "true", None])
def test_an_upgrade_is_granted_by_true_alone(value: object) -> None:
    answer = read(tls_v1=value, snappy=value, deflate=value, auth_required=value)
    assert not (answer.tls_v1 or answer.snappy or answer.deflate or answer.auth_required)


@pytest.mark.parametrize("payload", BAD_ANSWERS)
@pytest.mark.usefixtures("no_garbage_collection")
def test_what_is_no_answer_to_identify(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="the reply to IDENTIFY"):
        Negotiated.from_payload(payload)


LONG = "x" * 100


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (LONG.encode(), f"the reply to IDENTIFY is not a JSON object: {LONG[:80].encode()!r}"),
        (f'"{LONG}"'.encode(), f"the reply to IDENTIFY is not a JSON object: b'\"{LONG[:79]}'"),
        (b'{"sample_rate":"1"}', "the reply to IDENTIFY has sample_rate='1', not an integer in range"),
        (
            f'{{"sample_rate":"{LONG}"}}'.encode(),
            f"the reply to IDENTIFY has sample_rate='{LONG[:79]}, not an integer in range",
        ),
        (b'{"version":3}', "the reply to IDENTIFY has version=3, not a string"),
    ],
)
def test_what_is_wrong_with_an_answer_to_identify_is_said(payload: bytes, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Negotiated.from_payload(payload)
    assert str(caught.value) == says


@pytest.mark.parametrize(("value", "is_read"), [(-2, False), (-1, True), (2**63 - 1, True), (2**63, False)])
def test_the_range_of_numbers(value: int, is_read: bool) -> None:
    payload = json.dumps({"max_deflate_level": value}).encode()
    if is_read:
        assert Negotiated.from_payload(payload).max_deflate_level == value
    else:
        with pytest.raises(ProtocolError):
            Negotiated.from_payload(payload)


def test_every_field_is_read() -> None:
    answer = {
        "version": "1.3.0",
        "max_rdy_count": 7,
        "msg_timeout": 1500,
        "max_msg_timeout": 2500,
        "sample_rate": 5,
        "output_buffer_size": 64,
        "output_buffer_timeout": 3500,
        "auth_required": True,
        "tls_v1": True,
        "snappy": True,
        "deflate": True,
        "deflate_level": 4,
        "max_deflate_level": 8,
        "topology_region": "here",
        "topology_zone": "there",
    }
    in_seconds = {"msg_timeout": 1.5, "max_msg_timeout": 2.5, "output_buffer_timeout": 3.5}
    assert read(**answer) == Negotiated(**{**answer, **in_seconds})  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "expected"), [(-1, 0), (0, 0), (1, 1), (None, 2500)])
def test_max_rdy_count_is_not_negative(count: int | None, expected: int) -> None:
    assert read(max_rdy_count=count).max_rdy_count == expected


@given(st.dictionaries(st.sampled_from([*Negotiated.__dataclass_fields__, "other"]), json_values))
def test_any_object_is_read_or_is_the_protocol_error(answer: dict[str, object]) -> None:
    try:
        negotiated = read(**answer)
    except ProtocolError:
        return
    assert 1 <= negotiated.deflate_level <= 9
    assert negotiated.max_rdy_count >= 0


def test_the_answer_to_auth() -> None:
    payload = b'{"identity":"ann","identity_url":"http://people.example/ann","permission_count":2}'
    assert Authorized.from_payload(payload) == Authorized("ann", "http://people.example/ann", 2)
    assert Authorized.from_payload(b'{"more": []}') == Authorized()


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (LONG.encode(), f"the reply to AUTH is not a JSON object: {LONG[:80].encode()!r}"),
        (b'{"identity_url":3}', "the reply to AUTH has identity_url=3"),
        (f'{{"permission_count":"{LONG}"}}'.encode(), f"the reply to AUTH has permission_count='{LONG[:79]}"),
    ],
)
def test_what_is_wrong_with_an_answer_to_auth_is_said(payload: bytes, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Authorized.from_payload(payload)
    assert str(caught.value) == says


@pytest.mark.parametrize("payload", [b"", b"OK", b"[]", b'{"identity":3}', b'{"permission_count":true}', b"\xff"])
def test_what_is_no_answer_to_auth(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="the reply to AUTH"):
        Authorized.from_payload(payload)
