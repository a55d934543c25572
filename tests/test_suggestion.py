"""Suggestions for misspelt names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.suggestion import did_you_mean

KNOWN = ("msg_timeout", "max_in_flight", "nsqdTcpAddresses")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("msg_timout", "; did you mean msg_timeout?"),
        ("MAX_INFLIGHT", "; did you mean max_in_flight?"),
        ("nsqdtcpadresses", "; did you mean nsqdTcpAddresses?"),
        ("colour", ""),
        ("", ""),
        (7, ""),
    ],
)
def test_the_nearest_name_is_suggested_in_its_own_case(name: object, hint: str) -> None:
    assert did_you_mean(name, KNOWN) == hint


def test_a_label_says_how_names_are_written() -> None:
    assert did_you_mean("msg_timout", KNOWN, "NSQ_{}") == "; did you mean NSQ_msg_timeout?"


@given(st.text(), st.lists(st.text()))
def test_only_known_names_are_suggested(name: str, known: list[str]) -> None:
    assert did_you_mean(name, known) in {"", *(f"; did you mean {each}?" for each in known)}


@given(st.lists(st.from_regex(r"[a-z_]{3,20}", fullmatch=True), min_size=1, unique=True), st.data())
def test_a_name_that_differs_in_case_only_is_found(known: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(known))
    assert did_you_mean(name.upper(), known) == f"; did you mean {name}?"
