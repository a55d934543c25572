"""Any response of an auth server gives an Access or a ValueError."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.nsqd.authorizations import Access, read_access

PATTERNS = st.text(st.sampled_from(list("ab.*+?()[]{}^$|\\:=!<>PziQE019-,&~\n")) | st.characters(), max_size=12)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | PATTERNS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {
        "topic": PATTERNS,
        "channels": st.lists(PATTERNS, max_size=2),
        "permissions": st.lists(st.sampled_from(["subscribe", "publish"]), max_size=2),
    }
)


def outcome(body: bytes) -> Access | None:
    try:
        return read_access(body)
    except ValueError:
        return None


@given(st.binary(max_size=50) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_whatever_comes(body: bytes) -> None:
    access = outcome(body)
    assert access is None or access.ttl > 0


@given(st.fixed_dictionaries({"ttl": st.just(1)}, optional={"identity": VALUES, "authorizations": VALUES}))
def test_whatever_is_in_its_place(answer: dict[str, Any]) -> None:
    access = outcome(json.dumps(answer).encode())
    assert access is None or isinstance(access.identity, str)


@given(st.lists(ENTRIES, max_size=3), st.text("ab.", min_size=1, max_size=4), st.text("ab.", max_size=4))
def test_whatever_its_expressions_are(entries: list[dict[str, Any]], topic: str, channel: str) -> None:
    access = outcome(json.dumps({"ttl": 1, "authorizations": entries}).encode())
    assert access is None or access.allows(topic, channel) in (True, False)


@pytest.mark.parametrize(
    ("pattern", "fit"),
    [
        (r"^[^(?=]$", False),  # unusual; refused rather than misread
        (r"\(?=x", True),
        (r"\\1", True),
        (r"a\10", False),
        (r"[[:alpha:]]", False),
        (r"(?<=a)b", False),
        (r"(?P<name>a)", True),
        (r"(?P=name)", False),
        (r"(?i:a)", True),
        (r"a(?i)b", False),
        (r"\Qa.b\E", False),
        (r"\pL", False),
        (r"a{2,3}?", True),
    ],
)
def test_expressions_that_go_and_python_share(pattern: str, fit: bool) -> None:
    entry = {"topic": pattern, "channels": [], "permissions": []}
    assert (outcome(json.dumps({"ttl": 1, "authorizations": [entry]}).encode()) is not None) == fit
