"""Message ids: unique and growing, whatever the clock does."""

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.broker.message import MessageIds

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


steps = st.lists(st.tuples(st.sampled_from([0, 1, 5000]), st.integers(-(10**10), 10**10)), max_size=6)


@given(steps, st.integers(0, 1023))
def test_ids_stay_unique_and_growing_whatever_the_clock_does(steps: list[tuple[int, int]], node: int) -> None:
    ids = MessageIds(node)
    made: list[bytes] = []
    for count, moved_ns in steps:
        made += ids.make(count, NOW_NS + moved_ns)
    assert len(made) == sum(count for count, _ in steps)
    assert made == sorted(set(made))
    assert all(len(each) == 16 and parts(each)[1] == node for each in made)
