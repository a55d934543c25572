"""The daemons' small parts: message ids, Go's texts, query strings, the registry."""

import pytest

from gnsq_like.server.broker.message_ids import MessageIds
from gnsq_like.server.nsqlookupd.registry import Producer, Registry
from gnsq_like.server.shared import gotext
from gnsq_like.server.shared.wsgi import Problem, parse_query

TICK_NS = 1 << 20
NOW_NS = 1_795_230_760 * 10**9


def parts(message_id: bytes) -> tuple[int, int, int]:
    """Tick, node, sequence."""
    number = int(message_id, 16)
    return number >> 22, number >> 12 & 1023, number & 4095


def test_ids_count_within_a_tick_and_begin_anew_in_the_next() -> None:
    ids = MessageIds(7)
    first = ids.make(3, NOW_NS)
    assert [parts(each)[1:] for each in first] == [(7, 0), (7, 1), (7, 2)]
    assert [parts(each)[1:] for each in ids.make(2, NOW_NS)] == [(7, 3), (7, 4)]
    (later,) = ids.make(1, NOW_NS + TICK_NS)
    assert parts(later) == (parts(first[0])[0] + 1, 7, 0)


def test_ids_stay_unique_and_growing_whatever_the_clock_does() -> None:
    ids = MessageIds(1023)
    made = ids.make(10_000, NOW_NS)
    made += ids.make(5000, NOW_NS - 10**9)
    made += ids.make(5000, NOW_NS + TICK_NS)
    assert made == sorted(set(made))
    assert {len(each) for each in made} == {16}


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (b"t", b'"t"'),
        (b"", b'""'),
        (b'a"\\\n\t\x00\x7f', b'"a\\"\\\\\\n\\t\\x00\\x7f"'),
        ("é€😀".encode(), '"é€😀"'.encode()),
        (b"\xff\xc3(", b'"\\xff\\xc3("'),
        ("\u200b\U000e0001".encode(), b'"\\u200b\\U000e0001"'),
    ],
)
def test_quoting_as_go_does(text: bytes, quoted: bytes) -> None:
    assert gotext.quote(text) == quoted


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"", 0), (b"007", 7), (b"18446744073709551617", 1), (b"-1", None), (b"1.0", None), ("٣".encode(), None)],
)
def test_numbers_as_nsqd_reads_them(text: bytes, number: int | None) -> None:
    assert gotext.parse_uint64(text) == number


def test_milliseconds_wrap_as_go_durations() -> None:
    assert gotext.seconds_from_ms(1500) == 1.5
    assert gotext.seconds_from_ms((1 << 63) // 1_000_000 + 1) < 0


def test_query_strings_as_go_takes_them_apart() -> None:
    assert parse_query("") == {}
    assert parse_query("a=1&b&a=2&&c=x%23y+z=&=e") == {"a": "1", "b": "", "c": "x#y z=", "": "e"}
    for query in ("a=%zz", "a=%4", "%=1", "a=1;b=2"):
        with pytest.raises(Problem):
            parse_query(query)


def test_the_registry_forgets_nothing_but_who_left() -> None:
    registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
    one, two = (Producer(f"ip:{n}", f"h{n}", f"b{n}", 1, 2, "1.3.0", last_update=1000.0) for n in (1, 2))
    for producer in (one, two):
        registry.connect(producer)
        registry.register(producer, "t", "c")
    assert registry.lookup("t", 1300) == [one, two]
    assert registry.lookup("t", 1301) == []
    two.last_update = 1200.0
    assert registry.lookup("t", 1301) == [two]
    registry.tombstone("t", "b2:2", 1301)
    assert (registry.lookup("t", 1345.9), registry.lookup("t", 1346)) == ([], [two])
    assert (registry.is_tombstoned(two, "t", 1345.9), registry.is_tombstoned(two, "t", 1346)) == (True, False)
    for producer in (one, two):
        registry.disconnect(producer)
    assert (registry.lookup("t", 1301), registry.channels_of("t"), registry.nodes(1301)) == ([], ["c"], [])
