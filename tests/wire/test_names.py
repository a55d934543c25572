import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import InvalidName
from gnsq_like.wire.names import encode_channel, encode_topic, is_ephemeral, is_valid_name

ALLOWED = "abcxyzABCXYZ0189._-"


@pytest.mark.parametrize("name", ["a", "a.b", "A-1_", "x" * 64, "x#ephemeral", "x" * 54 + "#ephemeral"])
def test_names_that_nsqd_takes(name):
    assert is_valid_name(name)
    assert encode_topic(name) == encode_channel(name) == name.encode()


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, "#ephemeral", "x#eph", "x#ephemeral#ephemeral", "a b", "a\n", "x#ephemeral\n", "ä", "a/b"]
    + ["x" * 55 + "#ephemeral", "a\x00", "١"],
)
def test_names_that_nsqd_refuses(name):
    assert not is_valid_name(name)
    with pytest.raises(InvalidName) as caught:
        encode_topic(name)
    assert (caught.value.kind, caught.value.name) == ("topic", name)
    with pytest.raises(InvalidName) as caught:
        encode_channel(name)
    assert (caught.value.kind, caught.value.name) == ("channel", name)


@pytest.mark.parametrize("name", [None, b"bytes", 3])
def test_a_name_that_is_no_text_is_refused(name):
    for encode, kind in ((encode_channel, "channel"), (encode_topic, "topic")):
        with pytest.raises(InvalidName) as caught:
            encode(name)
        assert (caught.value.kind, caught.value.name) == (kind, name)


@given(st.text(alphabet=ALLOWED + "#ephemral \n\r\0é", max_size=70))
def test_valid_is_what_the_rule_says(name):
    stem = name.removesuffix("#ephemeral")
    right = len(stem) >= 1 and len(name) <= 64 and re.search(r"[^a-zA-Z0-9._-]", stem) is None
    assert is_valid_name(name) == right


def test_ephemeral_is_told_by_the_suffix():
    assert is_ephemeral("x#ephemeral")
    assert not is_ephemeral("ephemeral")
