"""nsqd.dat: what is written is read back, and anything else is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.metadata import BadMetadata, Entry, decode, encode

names = st.from_regex(r"[a-z]{1,8}(#ephemeral)?", fullmatch=True)
topics = st.dictionaries(names, st.tuples(st.booleans(), st.dictionaries(names, st.booleans(), max_size=3)), max_size=4)


@given(topics)
def test_durable_topics_and_channels_are_read_back(wanted: dict[str, tuple[bool, dict[str, bool]]]) -> None:
    broker = Broker()
    expected = []
    for name, (paused, channels) in wanted.items():
        topic = broker.topic(name)
        topic.set_paused(paused, 0.0)
        for channel, channel_paused in channels.items():
            broker.channel(topic, channel, 0.0).set_paused(channel_paused)
        kept = [Entry(each, is_paused) for each, is_paused in channels.items() if not each.endswith("#ephemeral")]
        if not name.endswith("#ephemeral"):
            expected.append(Entry(name, paused, tuple(kept)))
    assert decode(encode(broker.topics.values())) == expected


def test_invalid_names_are_left_out_and_missing_fields_have_defaults() -> None:
    data = {"topics": [{"name": "two words"}, {"name": "t", "channels": [{}, {"name": "c", "paused": None}]}]}
    assert decode(json.dumps(data).encode()) == [Entry("t", False, (Entry("c", False),))]
    assert decode(b"{}") == []


def test_null_is_the_default() -> None:
    assert decode(b"null") == []
    assert decode(b'{"topics": null}') == []


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"topics": 1}', b'{"topics": [1]}', b'{"topics":[{"name":1}]}'])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        decode(data)
