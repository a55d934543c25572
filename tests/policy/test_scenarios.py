"""What went wrong in other clients (docs/internals, Faults of other clients, go-nsq's issues by number), replayed on
the simulated cluster: moves of RDY, and connections without messages. `Cluster` checks the window, the block and every
plan by itself in all of them; test_backoff_scenarios.py has those with backoff."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.rdy import Mode, Settings
from tests.support.scale import PROFILE, examples, scaled, share_of
from tests.support.scenes import SOON, Scene
from tests.support.virtual_nsqd import Message, Nsqd

# --- lowering, raising, moving


@pytest.mark.parametrize("nsqds", [2, 3])
def test_g1_lowering_max_in_flight_takes_effect_at_once(nsqds: int) -> None:
    scene = Scene(nsqds, 120, seconds=1.0)
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(500)
    scene.clock.run(2.5)
    assert scene.rdys == [120 // nsqds] * nsqds
    assert scene.cluster.in_flight == 120
    for lower in (60, 6):
        scene.reader.set_max_in_flight(lower)
        scene.clock.run(SOON)
        assert scene.rdys == [0] * nsqds, "nothing for the answers until enough has been answered"
        scene.clock.run(2.0)
        assert scene.rdys == [lower // nsqds] * nsqds
        assert scene.cluster.in_flight == lower


def test_g1_lowering_with_one_connection_over_its_share_stops_the_others() -> None:
    scene = Scene(2, 100, seconds=1.0)
    scene.cluster.nsqds[0].publish(500)
    scene.clock.run(0.2)
    scene.reader.set_max_in_flight(10)
    scene.clock.run(SOON)
    scene.cluster.nsqds[1].publish(500)
    scene.clock.run(SOON)
    assert [len(nsqd.in_flight) for nsqd in scene.cluster.nsqds] == [99, 0]
    scene.clock.run(5.0)
    assert [len(nsqd.in_flight) for nsqd in scene.cluster.nsqds] == [5, 5]


def test_g1_a_connection_that_came_too_late_for_any_gets_its_share_when_the_other_answers() -> None:
    """The first one held the whole window when the second came; then max_in_flight was lowered."""
    scene = Scene(1, 60, seconds=1.0)
    scene.cluster.nsqds[0].publish(100)
    scene.clock.run(SOON)
    scene.join().nsqd.publish(100)
    scene.clock.run(SOON)
    assert [len(nsqd.in_flight) for nsqd in scene.cluster.nsqds] == [60, 0]
    scene.reader.set_max_in_flight(4)
    scene.clock.run(SOON)
    assert scene.rdys == [3, 0], "the window is full, fuller than it may be"
    scene.clock.run(2.0)
    assert scene.rdys == [2, 2]
    scene.clock.run(55.0)
    assert scene.handled == 200


@pytest.mark.parametrize("delay", [0.005, 0.02, 0.05])
@pytest.mark.parametrize(("nsqds", "before", "after"), [(4, 20, 3), (3, 30, 6), (2, 10, 1), (4, 12, 8), (5, 100, 40)])
@pytest.mark.parametrize("adaptive", [False, True])
def test_lowering_live_sends_nothing_more_until_there_is_room(
    nsqds: int, before: int, after: int, delay: float, adaptive: bool
) -> None:
    """20 lowered to 3 over four connections kept RDY 1, 1, 0, 1, and 5 messages in flight."""
    scene = Scene(0, before, seconds=0.3, adaptive=adaptive)
    connections = [
        scene.cluster.add(Nsqd(scene.clock, f"n{n}"), delay=lambda: delay, round_trip=2 * delay) for n in range(nsqds)
    ]
    for connection in connections:
        connection.nsqd.publish(before)
    scene.reader.handle = lambda _message: (0.1 + 0.4 * scene.seconds_of(), "finish")
    scene.clock.run(1.0)
    for connection in connections:
        connection.nsqd.publish(1000)
    scene.clock.run(1.0)
    assert scene.cluster.in_flight > after
    scene.reader.set_max_in_flight(after)
    arrived = scene.clock.now + delay + 0.001
    excesses: list[int] = []

    def sent(_nsqd: Nsqd) -> None:
        total = scene.cluster.in_flight
        if scene.clock.now > arrived and total > after:
            excesses.append(total)

    for nsqd in scene.cluster.nsqds:
        nsqd.on_send = sent
    handled = scene.handled
    scene.clock.run(20.0)
    assert excesses == []
    assert scene.handled > handled + 20 * after, "and it goes on"


def test_g2_p4_survivors_are_raised_at_once_without_a_message() -> None:
    scene = Scene(3, 90)
    assert scene.rdys == [30, 30, 30]
    scene.reader.lose(scene.connections[0])
    scene.clock.run(SOON)
    assert scene.rdys == [0, 45, 45]
    scene.reader.lose(scene.connections[1])
    scene.clock.run(SOON)
    assert scene.rdys == [0, 0, 90]


@pytest.mark.parametrize("adaptive", [False, True])
def test_g3_max_in_flight_1_holds_when_rdy_moves_under_a_slow_handler(adaptive: bool) -> None:
    scene = Scene(4, 1, seconds=25.0, adaptive=adaptive, settings=Settings(low_rdy_timeout=5.0))
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(50)
    scene.clock.run(600.0)
    assert scene.cluster.most_in_flight == 1
    assert all(nsqd.finished_count >= 4 for nsqd in scene.cluster.nsqds)
    assert sum(nsqd.finished_count for nsqd in scene.cluster.nsqds) >= 600 // 26


def test_g3_entering_backoff_with_slow_handlers_frees_nothing() -> None:
    scene = Scene(2, 4, seconds=0.5, backoff=True)
    scene.verdicts = ["requeue", *["finish"] * 3]
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(20)
    scene.clock.run(60.0)
    assert scene.cluster.most_in_flight == 4
    assert scene.backoff.mode is Mode.FLOWING


def test_g8_the_busy_one_is_lent_what_the_idle_ones_do_not_use() -> None:
    scene = Scene(5, 100, seconds=0.1)
    for nsqd in scene.cluster.nsqds:
        nsqd.publish()
    scene.clock.run(0.2)
    keep_busy(scene, scene.cluster.nsqds[2])
    scene.clock.run(8.8)
    assert scene.rdys == [20] * 5
    scene.clock.run(2.0)
    assert scene.rdys == [1, 1, 96, 1, 1]
    scene.cluster.nsqds[0].publish()
    scene.clock.run(0.3)
    assert (scene.rdys[0], scene.rdys[2]) == (49, 48) or (scene.rdys[0], scene.rdys[2]) == (48, 49)


def test_p2_no_stall_between_messages_with_fewer_slots_than_connections() -> None:
    scene = Scene(4, 1, seconds=0.01, settings=Settings(low_rdy_timeout=2.0))
    for nsqd in scene.cluster.nsqds:
        keep_busy(scene, nsqd)
    scene.clock.run(80.0)
    assert scene.handled > 0.98 * 80 / 0.0102
    counts = [nsqd.finished_count for nsqd in scene.cluster.nsqds]
    assert min(counts) > 0.8 * max(counts)


def test_p2_a_moved_slot_is_used_again_a_round_trip_after_the_answer() -> None:
    scene = Scene(2, 1, seconds=7.0, settings=Settings(low_rdy_timeout=5.0))
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(20)
    scene.clock.run(100.0)
    times = [when for when, _, _ in scene.reader.log]
    assert max(later - earlier for earlier, later in zip(times, times[1:], strict=False)) < 7.01


def test_p3_lowering_max_in_flight_leaves_idle_connections_their_share() -> None:
    scene = Scene(3, 90)
    scene.reader.set_max_in_flight(60)
    scene.clock.run(SOON)
    assert scene.rdys == [20, 20, 20]


def test_pynsq_252_new_connections_do_not_exceed_max_in_flight() -> None:
    scene = Scene(1, 2, seconds=5.0)
    scene.cluster.nsqds[0].publish(10)
    scene.clock.run(SOON)
    for _ in range(6):
        scene.join().nsqd.publish(10)
    scene.clock.run(300.0)
    assert scene.cluster.most_in_flight == 2
    assert all(nsqd.finished_count for nsqd in scene.cluster.nsqds)


def test_pynsq_38_a_new_connection_does_not_stay_at_rdy_0() -> None:
    scene = Scene(2, 2, seconds=0.05)
    keep_busy(scene, scene.cluster.nsqds[0])
    keep_busy(scene, scene.cluster.nsqds[1])
    scene.reader.set_max_in_flight(3)
    scene.join().nsqd.publish()
    scene.clock.run(0.2)
    assert scene.cluster.nsqds[2].finished_count == 1


def test_an_nsqd_that_allows_little_rdy_is_not_asked_for_more() -> None:
    scene = Scene(1, 5000)
    assert scene.rdys == [2500]


def test_a_handler_of_three_msg_timeouts_is_never_joined_by_a_second() -> None:
    scene = Scene(1, 1, seconds=3.0, msg_timeout=1.0)
    scene.cluster.nsqds[0].publish(3)
    scene.clock.run(60.0)
    assert scene.reader.most_running == 1
    assert scene.handled >= 18


def test_a_lost_connections_handlers_still_count() -> None:
    scene = Scene(2, 1, seconds=5.0, settings=Settings(low_rdy_probe_timeout=0.1))
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(3)
    scene.clock.run(1.0)
    scene.reader.lose(scene.reader.log[0][1])
    scene.clock.run(3.0)
    assert scene.reader.most_running == 1
    scene.clock.run(3.0)
    assert scene.handled == 2


# --- one slot, ten connections


def keep_busy(scene: Scene, nsqd: Nsqd) -> None:
    def refill() -> None:
        if len(nsqd.queue) < 200:
            nsqd.publish(400)
        scene.clock.after(0.1, refill)

    refill()


@scaled
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("adaptive", [False, True])
def test_ten_connections_one_slot_one_busy(seed: int, adaptive: bool) -> None:
    scene = Scene(10, 1, seconds=0.05, seed=seed, adaptive=adaptive)
    start = scene.clock.now
    busy = scene.cluster.nsqds[seed]
    keep_busy(scene, busy)
    seconds = share_of(600)
    scene.clock.run(seconds)
    times = [when for when, _, _ in scene.reader.log]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert times[0] - start < 5.0
    assert len(times) * 0.05 / seconds > 0.85
    assert max(gaps) < 2.5


def test_ten_connections_one_slot_the_others_messages_come_in_time() -> None:
    scene = Scene(10, 1, seconds=0.05)
    keep_busy(scene, scene.cluster.nsqds[0])
    scene.clock.run(60.0)
    for nsqd in scene.cluster.nsqds[1:]:
        nsqd.publish()
        scene.clock.run(4.5)
        assert nsqd.finished_count == 1


@pytest.mark.parametrize("seed", range(10))
def test_the_first_message_after_a_long_silence_comes_in_time(seed: int) -> None:
    scene = Scene(10, 1, seed=seed)
    scene.clock.run(200.0 + seed)
    published = scene.clock.now
    scene.cluster.nsqds[seed].publish()
    scene.clock.run(10.0)
    [(handled, _, _)] = scene.reader.log
    assert handled - published < 5.5


# --- more busy connections than places


@scaled
@pytest.mark.parametrize(
    ("nsqds", "places", "hung", "seconds", "longest"),
    [
        (3, 2, 0, 0.02, 2.0),
        (30, 6, 0, 0.05, 5.0),
        # A hundred nsqds take half a minute to compute.
        *([(100, 20, 0, 0.1, 5.1), (100, 1, 0, 0.02, 10.1)] if PROFILE != "quick" else []),
        (3, 10, 8, 0.02, 2.0),
        (3, 10, 9, 0.02, 3.0),
        (10, 4, 0, 3.0, 9.1),
        (3, 2, 0, 5.0, 10.1),
        (3, 12, 0, 10.0, 10.1),
    ],
)
def test_busy_nsqds_have_equally_many_messages_and_none_waits_for_long(
    nsqds: int, places: int, hung: int, seconds: float, longest: float
) -> None:
    """Also with hung handlers, and with slow ones, for which 13 of 12 messages were in flight when the first ended."""
    scene = Scene(nsqds, places, adaptive=nsqds < 20)
    scene.reader.checked = nsqds < 20  # checked plans of many connections take long
    stuck: set[int] = set()

    def handle(message: Message) -> tuple[float, str]:
        if len(stuck) < hung:
            stuck.add(id(message))
            return 1e6, "finish"
        return seconds, "finish"

    scene.reader.handle = handle
    for nsqd in scene.cluster.nsqds:
        keep_busy(scene, nsqd)
    scene.clock.run(15.0)
    began, first = scene.clock.now, len(scene.reader.log)
    lasts = 240.0 if seconds > 1 else 60.0
    scene.clock.run(lasts)
    times: dict[Nsqd, list[float]] = {nsqd: [began] for nsqd in scene.cluster.nsqds}
    for when, connection, _ in scene.reader.log[first:]:
        times[connection.nsqd].append(when)
    counts = [len(each) - 1 for each in times.values()]
    assert max(counts) <= 1.5 * min(counts) + 1
    assert max(later - earlier for each in times.values() for earlier, later in pairwise(each)) <= longest
    assert sum(counts) * seconds / lasts >= 0.95 * (places - hung)
    assert scene.cluster.most_in_flight == places


def test_silent_nsqds_take_little_of_a_single_place_from_the_busy_ones() -> None:
    for busy in (1, 3):
        scene = Scene(9 + busy, 1, seconds=0.05)
        for nsqd in scene.cluster.nsqds[:busy]:
            keep_busy(scene, nsqd)
        scene.clock.run(5.0)
        before = [nsqd.finished_count for nsqd in scene.cluster.nsqds[:busy]]
        scene.clock.run(60.0)
        counts = [nsqd.finished_count - n for nsqd, n in zip(scene.cluster.nsqds, before, strict=False)]
        assert sum(counts) * 0.05 / 60.0 >= 0.89
        assert max(counts) <= 1.2 * min(counts)
        for nsqd in scene.cluster.nsqds[busy:]:
            nsqd.publish()
        scene.clock.run(4.5)
        assert all(nsqd.finished_count for nsqd in scene.cluster.nsqds)


@pytest.mark.parametrize(("connections", "places", "held"), [(1, 10, 8.5), (3, 10, 8.5), (1, 1, 0.85)])
def test_one_busy_topic_of_fifty_has_most_of_the_places(connections: int, places: int, held: float) -> None:
    scene = Scene(0, places, seconds=0.05)
    scene.reader.checked = False
    nsqds = [Nsqd(scene.clock, f"n{n}") for n in range(50 * connections)]
    for n, nsqd in enumerate(nsqds):
        scene.reader.connect(nsqd, topic=n // connections)
    for nsqd in nsqds[:connections]:
        keep_busy(scene, nsqd)
    scene.clock.run(12.0)
    before = scene.handled
    scene.clock.run(20.0)
    assert (scene.handled - before) * 0.05 / 20.0 >= held


# --- one busy, the others silent


@pytest.mark.parametrize(
    ("nsqds", "max_in_flight", "held", "first"),
    [
        (10, 10, 8.5, 0.5),
        (10, 7, 5.95, 0.5),
        (10, 5, 4.0, 0.6),
        (10, 2, 1.0, 0.6),
        (2, 2, 1.8, 0.6),
        (30, 30, 27.0, 0.6),
        (100, 100, 97.0, 2.0),
    ],
)
def test_the_busy_one_has_most_of_the_window_and_the_silent_ones_their_turns(
    nsqds: int, max_in_flight: int, held: float, first: float
) -> None:
    scene = Scene(nsqds, max_in_flight, seconds=0.05, adaptive=True)
    busy = scene.cluster.nsqds[0]
    keep_busy(scene, busy)
    scene.clock.run(2.0)
    before = busy.finished_count
    scene.clock.run(20.0)
    assert (busy.finished_count - before) * 0.05 / 20.0 >= held
    waits = []
    for nsqd in scene.cluster.nsqds[1:6]:
        published = scene.clock.now
        nsqd.publish()
        scene.clock.run(1.3 * first)
        waits += [when - published for when, connection, _ in scene.reader.log if connection.nsqd is nsqd]
    assert len(waits) == len(scene.cluster.nsqds[1:6])
    assert max(waits) < first


def test_many_silent_connections_cost_few_commands() -> None:
    scene = Scene(0, 100, seconds=0.05)
    scene.reader.checked = False
    for n in range(300):
        scene.reader.connect(Nsqd(scene.clock, f"n{n}"))
    keep_busy(scene, scene.reader.connections[0].nsqd)
    scene.clock.run(3.0)
    plans, sent = scene.reader.plans, scene.reader.rdys_sent
    scene.clock.run(4.0)
    assert scene.reader.plans - plans < 10
    assert (scene.reader.rdys_sent - sent) / 4.0 < 2.1 * Settings().turns(300)
    assert all(each.nsqd.rdy_log for each in scene.reader.connections)


@pytest.mark.parametrize(
    ("nsqds", "max_in_flight", "ticks_a_second"), [(1000, 200, 20), (300, 10, 120), (300, 30, 40), (40, 1, 19)]
)
def test_idle_connections_with_too_few_places_cost_no_plans(
    nsqds: int, max_in_flight: int, ticks_a_second: float
) -> None:
    scene = Scene(0, max_in_flight)
    scene.reader.checked = False  # checked plans of a thousand connections take long
    for n in range(nsqds):
        scene.reader.connect(Nsqd(scene.clock, f"n{n}"))
        scene.clock.run(0.001)
    scene.clock.run(15.0)
    plans, ticks, sent = scene.reader.plans, scene.reader.ticks, scene.reader.rdys_sent
    scene.clock.run(10.0)
    assert scene.reader.plans == plans
    assert scene.reader.ticks - ticks <= 10.0 * ticks_a_second
    assert scene.reader.rdys_sent - sent <= 10.0 * 1.15 * 2 * nsqds / 5.0
    turns = [[at for at, rdy in each.nsqd.rdy_log if rdy] for each in scene.reader.connections]
    assert all(later - earlier <= 5.0 for times in turns for earlier, later in pairwise(times[-3:]))
    assert all(scene.clock.now - times[-1] <= 5.0 for times in turns)


@pytest.mark.parametrize("seed", range(5))
def test_a_message_ends_the_slow_turns_at_once(seed: int) -> None:
    """Its connection has its share after the settling time, and the others have their short turns."""
    scene = Scene(40, 20, seconds=0.05, seed=seed)
    scene.clock.run(20.0 + seed)
    holder = next(each for each in scene.connections if each.charge.rdy)
    waiting = min((each for each in scene.connections if not each.charge.rdy), key=lambda each: each.charge.turn_at)
    keep_busy(scene, holder.nsqd)
    scene.clock.run(SOON)
    assert holder.nsqd.rdy >= 17
    waiting.nsqd.publish()
    scene.clock.run(0.8)
    assert waiting.nsqd.finished_count == 1


@examples(3)
@given(
    nsqds=st.integers(2, 60),
    busy=st.integers(0, 3),
    once=st.integers(0, 60),
    max_in_flight=st.integers(1, 80),
    seed=st.integers(0, 99),
)
def test_turns_cost_a_bounded_number_of_commands(
    nsqds: int, busy: int, once: int, max_in_flight: int, seed: int
) -> None:
    scene = Scene(0, max_in_flight, seconds=1.0, seed=seed)
    scene.reader.checked = False
    for n in range(nsqds):
        scene.reader.connect(Nsqd(scene.clock, f"n{n}"))
    connected = [each.nsqd for each in scene.reader.connections]
    for nsqd in connected[:busy]:
        keep_busy(scene, nsqd)
    for nsqd in connected[nsqds - min(once, nsqds) :]:
        nsqd.publish()
    scene.clock.run(15.0)
    sent = scene.reader.rdys_sent
    scene.clock.run(5.0)
    # Two for a turn, and two for the busy one whose place it takes; and once, other shares for all.
    assert scene.reader.rdys_sent - sent <= 4 * 5.0 * Settings().turns(nsqds) + 2 * nsqds
