"""Shards, keys and delays of new rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.contrib.shared.outbox.rows import (
    DEFERRED,
    MAX_KEY_CHARS,
    NO_KEY,
    SHARDS,
    check_unused,
    checked_delay,
    checked_key,
    lock_number,
    shard_of,
)
from gnsq_like.errors import InvalidOption


@given(st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_a_key_has_one_of_the_shards_of_keys(topic: str, key: str) -> None:
    assert 0 <= shard_of(topic, key) < SHARDS


def test_shards_are_what_they_were() -> None:
    """Rows in tables, and relays of other versions, have these."""
    assert [shard_of("orders", str(key)) for key in range(6)] == [5, 3, 9, 15, 12, 10]
    assert (shard_of("orders", ""), shard_of("orders", "", is_deferred=True)) == (NO_KEY, DEFERRED) == (16, 17)


def test_keys_use_all_shards() -> None:
    assert {shard_of("orders", str(key)) for key in range(1000)} == set(range(SHARDS))


@given(st.text(max_size=60))
def test_a_lock_number_is_one_that_postgresql_takes(table: str) -> None:
    assert -(2**31) <= lock_number(table) < 2**31


def test_keys() -> None:
    assert checked_key(None, 5.0) == ""
    assert checked_key("é" * MAX_KEY_CHARS, None) == "é" * MAX_KEY_CHARS


@pytest.mark.parametrize(
    ("key", "defer", "text"),
    [
        ("", None, "text of 1 to 200 characters"),
        (17, None, "text of 1 to 200 characters"),
        ("x" * 201, None, "text of 1 to 200 characters"),
        ("a\0b", None, "null character"),
        ("a", 5.0, "no place in an order"),
    ],
)
def test_wrong_keys(key: object, defer: float | None, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        checked_key(key, defer)


def test_delays() -> None:
    assert checked_delay(None) is None
    assert checked_delay(86_400 * 365) == 86_400 * 365
    for wrong in (-1, float("nan"), float("inf"), True, "5"):
        with pytest.raises(InvalidOption, match="seconds"):
            checked_delay(wrong)


@pytest.mark.parametrize(("key", "envelope"), [("a", None), (None, True), (None, False)])
def test_what_needs_the_outbox(key: str | None, envelope: bool | None) -> None:
    check_unused(None, None)
    with pytest.raises(InvalidOption, match="it needs the outbox"):
        check_unused(key, envelope)
