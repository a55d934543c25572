"""What went wrong in other clients (docs/internals, Faults of other clients, go-nsq's issues by number), replayed:
moves of RDY, and connections without messages. The Scene checks the window by itself in all of them;
test_backoff_scenarios.py has those with backoff."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import gevent
import gevent.event
import pytest

from gnsq_like import Message
from gnsq_like.policy.places import TURNS
from tests.simulation import Cluster, simulated
from tests.simulation.oracles import used_at
from tests.simulation.scene import SOON, Nsqd, Scene, counted_plans, scenario

# --- lowering, raising, moving


@pytest.mark.parametrize("nsqds", [2, 3])
@scenario
def test_g1_lowering_max_in_flight_takes_effect_at_once(cluster: Cluster, nsqds: int) -> None:
    scene = Scene(cluster, nsqds, 120, seconds=1.0)
    for nsqd in scene.nsqds:
        nsqd.publish(500)
    scene.run(2.5)
    assert scene.rdys == [120 // nsqds] * nsqds
    assert scene.in_flight == 120
    for lower in (60, 6):
        scene.set_max_in_flight(lower)
        scene.run(SOON)
        assert scene.rdys == [0] * nsqds, "nothing for the answers until enough has been answered"
        scene.run(2.0)
        assert scene.rdys == [lower // nsqds] * nsqds
        assert scene.in_flight == lower


@scenario
def test_g1_lowering_with_one_connection_over_its_share_stops_the_others(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 100, seconds=1.0)
    scene.nsqds[0].publish(500)
    scene.run(0.2)
    scene.set_max_in_flight(10)
    scene.run(SOON)
    scene.nsqds[1].publish(500)
    scene.run(SOON)
    assert [nsqd.in_flight for nsqd in scene.nsqds] == [99, 0]
    scene.run(5.0)
    assert [nsqd.in_flight for nsqd in scene.nsqds] == [5, 5]


@scenario
def test_g1_a_connection_that_came_late_gets_its_share_when_the_other_answers(cluster: Cluster) -> None:
    """The first one held the whole window when the second came; then max_in_flight was lowered."""
    scene = Scene(cluster, 1, 60, spare=1, seconds=1.0)
    scene.nsqds[0].publish(100)
    scene.run(SOON)
    scene.join(100)
    scene.run(SOON)
    assert [nsqd.in_flight for nsqd in scene.nsqds] == [60, 0]
    scene.set_max_in_flight(4)
    scene.run(SOON)
    assert scene.rdys == [3, 0], "the window is full, fuller than it may be"
    scene.run(2.0)
    assert scene.rdys == [2, 2]
    scene.run(55.0)
    assert scene.handled == 200


@pytest.mark.parametrize("seed", range(4))
@simulated(nsqds=3, mem_queue_size=1_000_000)
def test_g1_a_raised_max_in_flight_is_used_although_processes_stand_still(cluster: Cluster, seed: int) -> None:
    """Handlers hold their places for long: 6 of them while max_in_flight is 6, and 20 when it is 20."""
    random, gate, inside = Random(seed), gevent.event.Event(), [0]
    processes = [cluster.world.main, *(nsqd.process for nsqd in cluster.nsqds)]

    def handler(_message: Message) -> None:
        inside[0] += 1
        gate.wait()
        inside[0] -= 1

    def stand_still() -> None:
        while True:
            gevent.sleep(random.expovariate(0.5))
            random.choice(processes).stand_still(5 * random.random())

    reader = cluster.reader("t", "c", handler, max_in_flight=60)
    for number in range(3):
        cluster.publish("t", *[b"x"] * 100, nsqd=number)
    cluster.closing.append(cluster.world.process("disturber").spawn(stand_still).kill)
    cluster.wait(lambda: inside[0] == 60, 30.0)
    gevent.sleep(6 * random.random())
    reader.max_in_flight = 6
    gevent.sleep(6 * random.random())
    gate.set()
    gate.clear()
    cluster.wait(lambda: inside[0] == 6, 30.0)
    gevent.sleep(6 * random.random())
    reader.max_in_flight = 20
    cluster.wait(lambda: inside[0] == 20, 30.0)
    gate.set()
    cluster.wait(lambda: reader.stats()["finished"] == 300, 120.0)


@pytest.mark.parametrize(
    ("nsqds", "before", "after", "latency", "adaptive"),
    [(4, 20, 3, 0.02, True), (2, 10, 1, 0.005, False), (4, 12, 8, 0.05, False), (5, 100, 40, 0.02, True)],
)
@scenario
def test_lowering_live_sends_nothing_more_until_there_is_room(
    cluster: Cluster, nsqds: int, before: int, after: int, latency: float, adaptive: bool
) -> None:
    """20 lowered to 3 over four connections kept RDY 1, 1, 0, 1, and 5 messages in flight. The Scene checks it."""
    cluster.world.network.latency = latency
    scene = Scene(cluster, nsqds, before, adaptive=adaptive)
    random = Random(1)
    scene.handle = lambda _message: (0.1 + 0.4 * random.random(), "finish")
    for nsqd in scene.nsqds:
        nsqd.publish(1000)
    scene.run(2.0)
    assert scene.in_flight > after
    scene.set_max_in_flight(after)
    scene.run(2.0)
    handled = scene.handled
    scene.run(10.0)
    assert scene.in_flight == after
    assert scene.handled > handled + 10 * after, "and it goes on"


@scenario
def test_g2_p4_survivors_are_raised_at_once_without_a_message(cluster: Cluster) -> None:
    scene = Scene(cluster, 3, 90)
    assert scene.rdys == [30, 30, 30]
    scene.nsqds[0].lose()
    scene.run(SOON)
    assert scene.rdys == [0, 45, 45]
    scene.nsqds[1].lose()
    scene.run(SOON)
    assert scene.rdys == [0, 0, 90]


@scenario
def test_g3_max_in_flight_1_holds_when_rdy_moves_under_a_slow_handler(cluster: Cluster) -> None:
    scene = Scene(cluster, 4, 1, seconds=25.0, adaptive=True, low_rdy_timeout=5.0)
    for nsqd in scene.nsqds:
        nsqd.publish(50)
    scene.run(600.0)
    assert scene.most_running == 1
    assert all(nsqd.finished >= 4 for nsqd in scene.nsqds)
    assert scene.finished >= 600 // 26


@scenario
def test_g3_entering_backoff_with_slow_handlers_frees_nothing(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 4, seconds=0.5, backoff=True)
    scene.verdicts = ["requeue", *["finish"] * 3]
    for nsqd in scene.nsqds:
        nsqd.publish(20)
    scene.run(60.0)
    assert scene.most_running == 4
    assert scene.mode == "flowing"


@scenario
def test_g8_the_busy_one_is_lent_what_the_idle_ones_do_not_use(cluster: Cluster) -> None:
    scene = Scene(cluster, 5, 100, seconds=0.1)
    for nsqd in scene.nsqds:
        nsqd.publish()
    scene.run(0.2)
    scene.nsqds[2].keep_busy()
    scene.run(1.0)
    assert scene.rdys == [1, 1, 96, 1, 1], "each fill of its share doubles what it needs"
    scene.nsqds[0].publish()
    scene.run(0.3)
    assert scene.nsqds[0].finished == 2


@scenario
def test_p2_no_stall_between_messages_with_fewer_slots_than_connections(cluster: Cluster) -> None:
    scene = Scene(cluster, 4, 1, seconds=0.04, low_rdy_timeout=2.0)
    for nsqd in scene.nsqds:
        nsqd.keep_busy()
    scene.run(40.0)
    assert scene.handled > 0.98 * 40 / 0.0402
    counts = [nsqd.finished for nsqd in scene.nsqds]
    assert min(counts) > 0.8 * max(counts)


@scenario
def test_p2_a_moved_slot_is_used_again_a_round_trip_after_the_answer(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 1, seconds=7.0, low_rdy_timeout=5.0)
    for nsqd in scene.nsqds:
        nsqd.publish(20)
    scene.run(100.0)
    times = [when for when, _, _ in scene.log]
    assert max(later - earlier for earlier, later in zip(times, times[1:], strict=False)) < 7.01


@scenario
def test_p3_lowering_max_in_flight_leaves_idle_connections_their_share(cluster: Cluster) -> None:
    scene = Scene(cluster, 3, 90)
    scene.set_max_in_flight(60)
    scene.run(SOON)
    assert scene.rdys == [20, 20, 20]


@scenario
def test_pynsq_252_new_connections_do_not_exceed_max_in_flight(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 2, spare=6, seconds=5.0)
    scene.nsqds[0].publish(10)
    scene.run(SOON)
    for _ in range(6):
        scene.join(10)
    scene.run(300.0)
    assert scene.most_running == 2
    assert all(nsqd.finished for nsqd in scene.nsqds)


@scenario
def test_pynsq_38_a_new_connection_does_not_stay_at_rdy_0(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 2, spare=1, seconds=0.05)
    scene.nsqds[0].keep_busy()
    scene.nsqds[1].keep_busy()
    scene.set_max_in_flight(3)
    scene.join(1)
    scene.run(0.2)
    assert scene.nsqds[2].finished == 1


@scenario
def test_an_nsqd_that_allows_little_rdy_is_not_asked_for_more(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 5000)
    assert scene.rdys == [2500]


@scenario
def test_a_handler_of_three_msg_timeouts_is_never_joined_by_a_second(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 1, seconds=3.0, msg_timeout=1.0)
    scene.nsqds[0].publish(3)
    scene.run(60.0)
    assert scene.most_running == 1
    assert scene.handled >= 18


@scenario
def test_a_lost_connections_handlers_still_count(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 1, seconds=5.0, low_rdy_probe_timeout=0.1)
    for nsqd in scene.nsqds:
        nsqd.publish(3)
    scene.run(1.0)
    scene.log[0][1].lose()
    scene.run(3.0)
    assert scene.most_running == 1
    scene.run(3.0)
    assert scene.handled == 2


# --- one slot, ten connections


@pytest.mark.parametrize(("busy", "adaptive"), [(0, True), (4, False)])
@scenario
def test_ten_connections_one_slot_one_busy(cluster: Cluster, busy: int, adaptive: bool) -> None:
    scene = Scene(cluster, 10, 1, seconds=0.05, adaptive=adaptive)
    start = scene.now
    scene.nsqds[busy].keep_busy()
    scene.run(30)
    gaps = [later - earlier for earlier, later in pairwise(scene.times)]
    assert scene.times[0] - start < 5.0
    assert scene.handled * 0.05 / 30 > 0.85
    assert max(gaps) < 2.5


@scenario
def test_ten_connections_one_slot_the_others_messages_come_in_time(cluster: Cluster) -> None:
    scene = Scene(cluster, 10, 1, seconds=0.05)
    scene.nsqds[0].keep_busy()
    scene.run(20.0)
    for nsqd in scene.nsqds[1:]:
        nsqd.publish()
        scene.run(4.5)
        assert nsqd.finished == 1


@scenario
def test_the_first_message_after_a_long_silence_comes_in_time(cluster: Cluster) -> None:
    scene = Scene(cluster, 10, 1)
    for number, nsqd in enumerate(scene.nsqds[:4]):
        scene.run(50.0 + 2.5 * number)
        nsqd.publish()
        scene.run(10.0)
    assert scene.handled == 4
    assert max(scene.delays) < 5.5


# --- more busy connections than places


@pytest.mark.parametrize(
    ("nsqds", "places", "hung", "seconds", "longest"),
    [
        (3, 2, 0, 0.05, 2.0),
        (30, 6, 0, 0.1, 5.0),
        (3, 10, 8, 0.05, 2.0),
        (3, 10, 9, 0.05, 3.0),
        (10, 4, 0, 3.0, 9.1),
        (3, 2, 0, 5.0, 10.1),
        (3, 12, 0, 10.0, 10.1),
    ],
)
@scenario
def test_busy_nsqds_have_equally_many_messages_and_none_waits_for_long(
    cluster: Cluster, nsqds: int, places: int, hung: int, seconds: float, longest: float
) -> None:
    """Also with hung handlers, and with slow ones, for which 13 of 12 messages were in flight when the first ended."""
    scene = Scene(cluster, nsqds, places, adaptive=nsqds < 20, msg_timeout=900.0)
    scene.handle = lambda _message: (1e6 if scene.handled <= hung else seconds, "finish")
    for nsqd in scene.nsqds:
        nsqd.keep_busy()
    scene.run(15.0)
    began, first = scene.now, scene.handled
    lasts = 240.0 if seconds > 1 else 15.0
    scene.run(lasts)
    times: dict[Nsqd, list[float]] = {nsqd: [began] for nsqd in scene.nsqds}
    for when, nsqd, _ in scene.log[first:]:
        times[nsqd].append(when)
    counts = [len(each) - 1 for each in times.values()]
    assert max(counts) <= 1.5 * min(counts) + 1
    assert max(later - earlier for each in times.values() for earlier, later in pairwise(each)) <= longest
    assert sum(counts) * seconds / lasts >= 0.95 * (places - hung)
    assert scene.most_running == places


@pytest.mark.parametrize("busy", [1, 3])
@scenario
def test_silent_nsqds_take_little_of_a_single_place_from_the_busy_ones(cluster: Cluster, busy: int) -> None:
    """The silent ones have 15 % of the time, so that none of their messages waits for longer than about two seconds."""
    scene = Scene(cluster, 9 + busy, 1, seconds=0.05)
    for nsqd in scene.nsqds[:busy]:
        nsqd.keep_busy()
    scene.run(5.0)
    before = [nsqd.finished for nsqd in scene.nsqds[:busy]]
    scene.run(60.0)
    counts = [nsqd.finished - count for nsqd, count in zip(scene.nsqds, before, strict=False)]
    assert sum(counts) * 0.05 / 60.0 >= 0.86
    assert max(counts) <= 1.2 * min(counts)
    for nsqd in scene.nsqds[busy:]:
        nsqd.publish()
    scene.run(2.2)
    assert all(nsqd.finished for nsqd in scene.nsqds)


@pytest.mark.parametrize(("nsqds", "places", "held"), [(2, 10, 8.5), (1, 1, 0.85)])
@scenario
def test_one_busy_topic_of_fifty_has_most_of_the_places(cluster: Cluster, nsqds: int, places: int, held: float) -> None:
    scene = Scene(cluster, nsqds, places, seconds=0.05, topics=[f"t{number}" for number in range(50)])
    for nsqd in scene.nsqds:
        nsqd.keep_busy(topic="t7")
    scene.run(12.0)
    before = scene.handled
    scene.run(10.0)
    assert (scene.handled - before) * 0.05 / 10.0 >= held


# --- one busy, the others silent


@pytest.mark.parametrize(
    ("nsqds", "max_in_flight", "held", "first"),
    [(10, 10, 8.5, 0.5), (10, 5, 4.0, 0.6), (10, 2, 1.6, 1.0), (2, 2, 1.8, 0.6)],
)
@scenario
def test_the_busy_one_has_most_of_the_window_and_the_silent_ones_their_turns(
    cluster: Cluster, nsqds: int, max_in_flight: int, held: float, first: float
) -> None:
    """15 % of the places are for the silent ones: as whole places, or one for a part of the time."""
    scene = Scene(cluster, nsqds, max_in_flight, seconds=0.05, adaptive=True)
    busy, *others = scene.nsqds
    busy.keep_busy()
    scene.run(2.0)
    before = busy.finished
    scene.run(10.0)
    assert (busy.finished - before) * 0.05 / 10.0 >= held
    waits = []
    for nsqd in others[:3]:
        published = scene.now
        nsqd.publish()
        scene.run(1.3 * first)
        waits += [when - published for when, where, _ in scene.log if where is nsqd]
    assert len(waits) == len(others[:3])
    assert max(waits) < first


@scenario
def test_many_silent_connections_cost_few_commands_and_plans(cluster: Cluster) -> None:
    scene = Scene(cluster, 50, 25, seconds=0.05)
    scene.nsqds[0].keep_busy()
    scene.run(3.0)
    plans, sent = counted_plans(), scene.rdys_sent
    scene.run(4.0)
    assert plans() / 4.0 < 100
    assert (scene.rdys_sent - sent) / 4.0 < 2.1 * TURNS
    assert all(nsqd.rdy_log for nsqd in scene.nsqds)


@pytest.mark.parametrize(("nsqds", "max_in_flight", "plans_a_second"), [(150, 25, 22), (40, 1, 70)])
@scenario
def test_idle_connections_with_too_few_places_cost_few_commands_and_plans(
    cluster: Cluster, nsqds: int, max_in_flight: int, plans_a_second: int
) -> None:
    scene = Scene(cluster, nsqds, max_in_flight)
    scene.run(15.0)
    plans, sent = counted_plans(), scene.rdys_sent
    scene.run(10.0)
    assert plans() / 10.0 < plans_a_second
    assert (scene.rdys_sent - sent) / 10.0 <= 2.1 * TURNS
    turns = [[at for at, rdy in nsqd.rdy_log if rdy] for nsqd in scene.nsqds]
    assert all(later - earlier <= 2.5 for times in turns for earlier, later in pairwise(times[-3:]))
    assert all(scene.now - times[-1] <= 2.5 for times in turns)


@scenario
def test_a_message_ends_the_slow_turns_at_once(cluster: Cluster) -> None:
    """Its connection has its share after the settling time, and the others have their short turns."""
    scene = Scene(cluster, 40, 20, seconds=0.05)
    scene.run(20.0)
    holder = next(nsqd for nsqd in scene.nsqds if nsqd.rdy)
    waiting = min((nsqd for nsqd in scene.nsqds if not nsqd.rdy), key=lambda nsqd: nsqd.rdy_log[-1])
    holder.keep_busy()
    scene.run(SOON)
    assert holder.rdy >= 17
    waiting.publish()
    scene.run(0.8)
    assert waiting.finished == 1


@pytest.mark.parametrize(
    ("nsqds", "busy", "once", "max_in_flight"), [(60, 3, 30, 10), (20, 1, 20, 80), (12, 0, 6, 3), (3, 2, 1, 1)]
)
@scenario
def test_turns_cost_a_bounded_number_of_commands(
    cluster: Cluster, nsqds: int, busy: int, once: int, max_in_flight: int
) -> None:
    scene = Scene(cluster, nsqds, max_in_flight, seconds=1.0)
    for nsqd in scene.nsqds[:busy]:
        nsqd.keep_busy()
    for nsqd in scene.nsqds[nsqds - once :]:
        nsqd.publish()
    scene.run(15.0)
    sent = scene.rdys_sent
    scene.run(5.0)
    # Two for a turn, and two for the busy one whose place it takes; and once, other shares for all.
    assert scene.rdys_sent - sent <= 4 * 5.0 * TURNS + 2 * nsqds


@pytest.mark.parametrize(
    ("max_in_flight", "rates", "seconds"),
    [
        (1, [100.0, 5.0, 0.0], 0.01),
        (3, [100.0, 100.0, 0.3, 0.0, 0.0, 5.0], 1.0),
        (2, [0.3, 0.3, 100.0, 100.0], 4.0),
        (7, [5.0, 0.0, 0.0, 0.3, 100.0, 0.0, 5.0, 0.3], 0.0),
    ],
)
@scenario
def test_every_connection_gets_a_turn_in_bounded_time(
    cluster: Cluster, max_in_flight: int, rates: list[float], seconds: float
) -> None:
    """Each nsqd gets so many messages a second, at random times, but no backlog beyond 50."""
    random = Random(1)
    scene = Scene(cluster, len(rates), max_in_flight, adaptive=True, low_rdy_idle_timeout=1.0, low_rdy_timeout=2.0)
    scene.handle = lambda _message: (seconds * random.choice([0, 1, 1, 2]), "finish")

    def flow(nsqd: Nsqd, rate: float) -> None:
        while True:
            gevent.sleep(random.expovariate(rate))
            if nsqd.waiting < 50:
                nsqd.publish()

    for nsqd, rate in zip(scene.nsqds, rates, strict=True):
        if rate:
            cluster.closing.append(gevent.spawn(flow, nsqd, rate).kill)
    # A turn, and the handlers that go on after it.
    longest = 2.0 + 2 * seconds + 0.1
    bound = longest * (len(rates) + 1) / min(max_in_flight, len(rates)) + longest
    for _ in range(40):
        scene.run(0.5)
        assert all(
            nsqd.used or scene.now - max([at for at, _ in nsqd.rdy_log[-1:]], default=0.0) <= bound
            for nsqd in scene.nsqds
        )


@simulated(nsqds=4, msg_timeout=2.0)
def test_a_message_that_nobody_took_in_time_keeps_its_place_until_nsqd_has_it_back(cluster: Cluster) -> None:
    """Its place was free a quarter of a second too early, and another nsqd sent a message there."""
    reader = cluster.reader("t", "c", max_in_flight=2)
    for number in range(4):
        cluster.publish("t", *[b"x"] * 200, nsqd=number)

    def take_slowly() -> None:
        for message in reader:
            message.finish()
            gevent.sleep(1.9)

    taking = gevent.spawn(take_slowly)
    cluster.always(lambda: sum(sum(used_at(nsqd).values()) for nsqd in cluster.nsqds) <= 2, "the window")
    cluster.sleep(60)
    taking.kill()
    assert reader.stats()["lost"] > 5


@simulated(nsqds=0, seed=2, mem_queue_size=1_000_000)
def test_a_process_that_reads_late_keeps_its_window_where_segments_take_long(
    cluster: Cluster,
) -> None:
    """An nsqd may hear of answers after another one has got their places."""
    random = Random(2)
    cluster.world.network.jitter = 0.0003
    scene = Scene(cluster, 3, 200, seconds=0.0)
    cluster.world.main.turn_seconds = lambda: random.expovariate(1 / 0.005)
    for nsqd in scene.nsqds:
        nsqd.publish(1333)
    cluster.wait(lambda: scene.finished == 3 * 1333)
    assert scene.most_used == 200
    cluster.world.main.turn_seconds = None


@simulated(nsqds=0, seed=3, mem_queue_size=1_000_000)
def test_what_waits_unread_when_a_settling_time_ends_holds_its_places(cluster: Cluster) -> None:
    """A process that reads late held up to 347 of 200: a lower RDY had been in force for long, but what had come before
    it was not read; or that RDY was written only when its settling time was nearly over."""
    random = Random(3)
    cluster.world.network.jitter = 0.002
    scene = Scene(cluster, 4, 200, low_rdy_idle_timeout=1.0)
    cluster.world.main.turn_seconds = lambda: random.expovariate(1 / 0.005)
    for _ in range(40):
        random.choice(scene.nsqds).publish(random.choice([1, 100, 400]))
        scene.run(random.random())
    cluster.world.main.turn_seconds = None
    assert scene.most_used == 200
