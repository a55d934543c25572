"""The broker's schedule: what is marked comes once, deadlines come in order, and the heap stays small."""

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.broker.schedule import Schedule


class Channel:
    """Keeps the one deadline of each message."""

    def __init__(self) -> None:
        self.dues: dict[bytes, float] = {}

    def awaits(self, message_id: bytes, due: float) -> bool:
        return self.dues.get(message_id) == due


def test_marks_are_taken_once_in_their_order_and_reported_once_until_then() -> None:
    reports: list[None] = []
    schedule: Schedule[str, Channel] = Schedule(lambda: reports.append(None))
    one, two = Channel(), Channel()
    for channel in (two, one, two):
        schedule.mark(channel)
    schedule.mark_topic("topic")
    assert len(reports) == 1
    assert schedule.take_topics() == ["topic"]
    assert schedule.take_marked() == [two, one]
    assert (schedule.take_topics(), schedule.take_marked()) == ([], [])
    schedule.mark(one)
    assert len(reports) == 2


@given(st.lists(st.floats(0, 100), max_size=30), st.floats(0, 100))
def test_deadlines_that_have_passed_come_in_order(dues: list[float], now: float) -> None:
    schedule: Schedule[str, Channel] = Schedule(lambda: None)
    channel = Channel()
    for number, due in enumerate(dues):
        schedule.remind(due, channel, [b"%d" % number])
    assert schedule.next_due == min(dues, default=None)
    popped = list(schedule.pop_due(now))
    assert [due for due, _, _ in popped] == sorted(due for due in dues if due <= now)
    assert {ids[0] for _, _, ids in popped} == {b"%d" % n for n, due in enumerate(dues) if due <= now}
    assert schedule.next_due == min((due for due in dues if due > now), default=None)


def test_entries_without_deadlines_are_dropped_when_enough_have_gathered() -> None:
    schedule: Schedule[str, Channel] = Schedule(lambda: None)
    channel = Channel()
    for number in range(20_000):
        message_id = b"%d" % number
        schedule.remind(float(number), channel, [message_id])
        if number % 100 == 0:
            channel.dues[message_id] = float(number)
        schedule.tidy()
    remaining = [ids for _, _, ids in schedule.pop_due(20_000)]
    assert 200 <= len(remaining) <= 8192
    assert {message_id for ids in remaining for message_id in ids} >= set(channel.dues)
