"""What went wrong in other clients (docs/internals, Faults of other clients, go-nsq's issues by number), replayed on
the simulated cluster. `Cluster` checks the window, the block and every plan by itself in all of them."""

from __future__ import annotations

import random

import pytest

from gnsq_like.policy.backoff import Backoff, exponential
from gnsq_like.policy.rdy import Mode, Settings
from tests.support.simulation import Cluster, Connection, Reader
from tests.support.virtual_nsqd import Clock, Message, Nsqd

SOON = 0.05  # seconds: several round trips and settling times


class Scene:
    """A Reader on `nsqds` nsqds; handlers take `seconds` and do what `verdicts` says, "finish" when it is empty."""

    def __init__(
        self,
        nsqds: int,
        max_in_flight: int,
        *,
        seconds: float = 0.01,
        backoff: bool = False,
        adaptive: bool = False,
        settings: Settings | None = None,
        msg_timeout: float | None = None,
        seed: int = 1,
    ) -> None:
        self.clock = Clock()
        self.seconds = seconds
        self.seconds_of = random.Random(1).random
        self.verdicts: list[str] = []
        self.msg_timeout = msg_timeout
        self.backoff = Backoff(exponential(1.0), max_duration=120.0 if backoff else 0.0)
        self.reader = Reader(
            self.clock,
            random.Random(seed),
            max_in_flight=max_in_flight,
            handle=self._handle,
            adaptive=adaptive,
            settings=settings,
            backoff=self.backoff,
        )
        self.cluster = Cluster(self.reader)
        self.connections = [self.join() for _ in range(nsqds)]
        self.clock.run(SOON)

    def _handle(self, _message: Message) -> tuple[float, str]:
        return self.seconds, self.verdicts.pop(0) if self.verdicts else "finish"

    def join(self) -> Connection:
        nsqd = Nsqd(self.clock, f"n{len(self.cluster.nsqds)}", msg_timeout=self.msg_timeout)
        return self.cluster.add(nsqd)

    @property
    def rdys(self) -> list[int]:
        """RDY as the nsqds know it."""
        return [nsqd.rdy for nsqd in self.cluster.nsqds]

    @property
    def handled(self) -> int:
        return len(self.reader.log)

    def until(self, mode: Mode, limit: float = 10.0) -> None:
        end = self.clock.now + limit
        while self.backoff.mode is not mode:
            assert self.clock.now < end, f"never {mode}"
            self.clock.run(0.001)


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


# --- backoff


def test_g6_stale_results_do_not_steer_backoff() -> None:
    scene = Scene(2, 10, backoff=True)
    times = iter([0.01, *[2.5] * 9])  # one fails at once; nine finish while the water is tested
    scene.reader.requeue_delay = 1000.0
    scene.reader.handle = lambda _m: (next(times), "requeue" if scene.handled == 1 else "finish")
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(5)
    scene.clock.run(2.2)
    assert scene.backoff.mode.name == "PROBING"
    scene.clock.run(1.0)
    assert scene.backoff.level == 1, "nine messages of before finished and changed nothing"
    scene.seconds = 0.01
    scene.reader.handle = scene._handle
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(1)
    scene.clock.run(1.0)
    assert scene.backoff.mode is Mode.FLOWING


@pytest.mark.parametrize("seconds", [0.0, 0.0001])
def test_g7_one_test_message_for_each_block_however_fast_it_is_answered(seconds: float) -> None:
    scene = Scene(1, 10, seconds=seconds, backoff=True)
    scene.verdicts = ["requeue"] * 4
    scene.cluster.nsqds[0].publish(1)
    scene.until(Mode.BLOCKED)
    scene.cluster.nsqds[0].publish(50)
    scene.clock.run(2 + 4 + 8 + 1)
    times = [when for when, _, _ in scene.reader.log]
    waits = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert waits == pytest.approx([2, 4, 8], abs=0.01)


def test_p1_successes_within_the_block_change_nothing() -> None:
    scene = Scene(1, 10, seconds=0.1, backoff=True)
    scene.verdicts = ["requeue"]
    scene.cluster.nsqds[0].publish(30)
    scene.clock.run(0.15)
    assert scene.handled == 10
    assert (scene.backoff.mode, scene.backoff.level) == (Mode.BLOCKED, 1)
    scene.clock.run(2.05)
    assert scene.handled == 11, "a test message comes before full throttle"
    scene.clock.run(SOON + 0.1)
    assert scene.backoff.mode is Mode.FLOWING
    assert scene.rdys == [10]


def test_pynsq_75_resuming_during_the_block_still_leaves_backoff() -> None:
    scene = Scene(1, 5, backoff=True)
    scene.verdicts = ["requeue"]
    scene.cluster.nsqds[0].publish(10)
    scene.until(Mode.BLOCKED)
    scene.reader.set_max_in_flight(0)
    scene.reader.set_max_in_flight(5)
    scene.clock.run(5.0)
    assert scene.backoff.mode is Mode.FLOWING
    assert scene.rdys == [5]


def test_pynsq_89_go_nsq_128_requeue_without_backoff_as_test_result_does_not_stall() -> None:
    scene = Scene(2, 6, backoff=True)
    scene.verdicts = ["requeue", *["finish"] * 5, "quiet", "quiet"]
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(10)
    scene.clock.run(10.0)
    assert scene.backoff.mode is Mode.FLOWING
    assert sum(nsqd.finished_count for nsqd in scene.cluster.nsqds) == 20


def test_go_nsq_106_a_connection_lost_during_the_block() -> None:
    scene = Scene(2, 6, backoff=True)
    scene.verdicts = ["requeue"]
    scene.cluster.nsqds[0].publish(1)
    scene.until(Mode.BLOCKED)
    scene.reader.lose(scene.connections[0])
    scene.cluster.nsqds[1].publish(10)
    scene.clock.run(5.0)
    assert scene.cluster.nsqds[1].finished_count == 10
    assert scene.rdys[1] == 6


def test_go_nsq_127_a_closing_connection_never_tests_the_water() -> None:
    for seed in range(10):
        scene = Scene(3, 6, backoff=True, seed=seed)
        scene.verdicts = ["requeue"]
        scene.cluster.nsqds[0].publish(1)
        scene.until(Mode.BLOCKED)
        scene.connections[0].unanswered.add(Message(0.0))  # it lingers
        scene.reader.leave(scene.connections[0])
        scene.reader.leave(scene.connections[1])
        scene.cluster.nsqds[2].publish(10)
        scene.clock.run(3.0)
        assert scene.cluster.nsqds[2].finished_count == 10


def test_go_nsq_130_the_connection_that_holds_the_test_rdy_dies_without_a_message() -> None:
    scene = Scene(2, 6, backoff=True)
    scene.verdicts = ["requeue"]
    scene.cluster.nsqds[0].publish(1)
    scene.reader.requeue_delay = 1000.0
    scene.until(Mode.PROBING)
    scene.clock.run(0.001)
    holder = scene.rdys.index(1)
    scene.reader.lose(scene.connections[holder])
    scene.cluster.nsqds[1 - holder].publish(10)
    scene.clock.run(1.0)
    assert scene.cluster.nsqds[1 - holder].finished_count == 10
    assert scene.backoff.mode is Mode.FLOWING


@pytest.mark.parametrize("answer", ["finish", "requeue"])
def test_go_nsq_131_the_connection_that_holds_the_test_message_dies(answer: str) -> None:
    scene = Scene(2, 6, backoff=True)
    scene.verdicts = ["requeue"]
    scene.cluster.nsqds[0].publish(1)
    scene.until(Mode.BLOCKED)
    scene.seconds = 3.0
    scene.verdicts = [answer]
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(10)
    scene.until(Mode.PROBING)
    scene.clock.run(SOON)
    scene.seconds = 0.01
    testing = scene.reader.log[-1][1]
    scene.reader.lose(testing)
    scene.clock.run(2.0)
    assert scene.backoff.mode is Mode.FLOWING, "another connection's message decided"
    scene.clock.run(10.0)
    assert scene.backoff.mode is Mode.FLOWING, "the late answer of the lost one did not"


def test_go_nsq_132_the_only_connection_dies_in_backoff_and_another_comes() -> None:
    for when in (Mode.BLOCKED, Mode.PROBING):
        scene = Scene(1, 6, backoff=True)
        scene.verdicts = ["requeue"]
        scene.cluster.nsqds[0].publish(1)
        scene.until(when)
        scene.clock.run(0.01)
        scene.reader.lose(scene.connections[0])
        scene.clock.run(30.0)
        scene.join().nsqd.publish(10)
        scene.clock.run(1.0)
        assert scene.cluster.nsqds[1].finished_count == 10
        assert scene.backoff.mode is Mode.FLOWING


def test_go_nsq_222_max_in_flight_0_is_rdy_0_and_can_be_left_again() -> None:
    scene = Scene(2, 6)
    scene.reader.set_max_in_flight(0)
    scene.clock.run(SOON)
    assert scene.rdys == [0, 0]
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(10)
    scene.clock.run(60.0)
    assert scene.handled == 0
    scene.reader.set_max_in_flight(6)
    scene.clock.run(1.0)
    assert scene.handled == 20


def test_a_probe_finds_the_one_nsqd_that_has_messages() -> None:
    scene = Scene(10, 10, backoff=True)
    scene.verdicts = ["requeue"]
    scene.cluster.nsqds[7].publish(20)
    scene.until(Mode.PROBING)
    scene.clock.run(10 * 0.26)
    assert scene.backoff.mode is Mode.FLOWING


@pytest.mark.parametrize("nsqds", [1, 2, 4])
@pytest.mark.parametrize("hung", [3, 6, 11])
@pytest.mark.parametrize("adaptive", [False, True])
def test_hung_handlers_cut_off_no_connection_while_they_leave_anything(nsqds: int, hung: int, adaptive: bool) -> None:
    scene = Scene(nsqds, 12, adaptive=adaptive, msg_timeout=1.0)
    to_hang = hung

    def handle(_message: Message) -> tuple[float, str]:
        nonlocal to_hang
        to_hang -= 1
        return 0.01 if to_hang < 0 else 1e6, "finish"

    scene.reader.handle = handle
    scene.cluster.nsqds[0].publish(hung)
    scene.clock.run(30.0)
    assert to_hang < 0
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(50)
    scene.clock.run(10.0)
    assert all(nsqd.finished_count >= 50 for nsqd in scene.cluster.nsqds)
    assert (scene.reader.running, scene.reader.most_running) == (hung, 12)


def test_an_nsqd_whose_handlers_hung_when_it_was_lost_is_served_again_at_once() -> None:
    scene = Scene(3, 30, seconds=1e6)
    scene.cluster.nsqds[0].publish(10)
    scene.clock.run(SOON)
    scene.seconds = 0.01
    scene.reader.lose(scene.connections[0])
    scene.clock.run(SOON)
    assert scene.rdys == [0, 10, 10]
    scene.join().nsqd.publish(50)
    scene.clock.run(1.0)
    assert sorted(scene.rdys) == [0, 1, 1, 18]
    assert scene.cluster.nsqds[3].finished_count == 50


def hang_one_and_fail_the_next(scene: Scene, nsqd: Nsqd, seconds: float) -> None:
    """The first handler takes `seconds`; the next message, once that is so long overdue, fails; others finish."""
    nsqd.publish()
    scene.seconds = seconds
    scene.clock.run(2.0)
    scene.seconds = 0.01
    scene.verdicts = ["requeue"]
    nsqd.publish()
    scene.until(Mode.BLOCKED)


@pytest.mark.parametrize("nsqds", [1, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_hung_handler_and_a_failure_do_not_stop_the_reader(nsqds: int, adaptive: bool) -> None:
    scene = Scene(nsqds, 10, backoff=True, adaptive=adaptive, msg_timeout=1.0)
    nsqd = scene.cluster.nsqds[0]
    hang_one_and_fail_the_next(scene, nsqd, 1000.0)
    nsqd.publish(100)
    scene.clock.run(5.0)
    assert scene.backoff.mode is Mode.FLOWING
    assert nsqd.finished_count > 100
    assert scene.reader.most_running <= 10


def test_a_test_message_that_hangs_beside_a_hung_handler_is_followed_by_another() -> None:
    scene = Scene(1, 10, backoff=True, msg_timeout=1.0)
    nsqd = scene.cluster.nsqds[0]
    hang_one_and_fail_the_next(scene, nsqd, 1000.0)
    scene.seconds = 1000.0
    before = scene.handled
    nsqd.publish(100)
    scene.until(Mode.PROBING)
    scene.clock.run(0.5)
    assert (scene.handled - before, scene.rdys) == (1, [1]), "one test message at a time"
    scene.seconds = 0.01
    scene.clock.run(5.0)
    assert scene.backoff.mode is Mode.FLOWING
    assert nsqd.finished_count > 100


@pytest.mark.parametrize("nsqds", [1, 3])
def test_at_max_in_flight_1_nothing_is_tested_beside_a_hung_handler(nsqds: int) -> None:
    scene = Scene(nsqds, 1, backoff=True, msg_timeout=1.0)
    scene.verdicts = ["requeue"]
    for nsqd in scene.cluster.nsqds:
        nsqd.publish(3)
    scene.until(Mode.PROBING)
    scene.seconds = 30.0
    scene.clock.run(1.0)
    scene.seconds = 0.01
    before = scene.handled
    scene.clock.run(25.0)
    assert scene.handled == before
    scene.clock.run(20.0)
    assert scene.reader.most_running == 1
    assert all(nsqd.finished_count for nsqd in scene.cluster.nsqds)


def test_a_test_waits_for_handlers_that_still_run() -> None:
    scene = Scene(1, 50, backoff=True)
    nsqd = scene.cluster.nsqds[0]
    hang_one_and_fail_the_next(scene, nsqd, 8.0)
    nsqd.publish(100)
    scene.clock.run(5.5)
    assert (scene.backoff.mode, scene.handled) == (Mode.PROBING, 2)
    scene.clock.run(3.0)
    assert scene.handled > 100


def test_many_failures_then_success_steps_down_one_by_one() -> None:
    scene = Scene(1, 5, backoff=True)
    scene.verdicts = ["requeue"] * 4
    scene.cluster.nsqds[0].publish(1)
    scene.clock.run(2 + 4 + 8 + 1)
    assert (scene.backoff.mode, scene.backoff.level) == (Mode.BLOCKED, 4)
    scene.cluster.nsqds[0].publish(20)
    scene.clock.run(16)
    assert (scene.backoff.mode, scene.backoff.level) == (Mode.BLOCKED, 3)
    scene.clock.run(8 + 4 + 2)
    assert (scene.backoff.mode, scene.backoff.level) == (Mode.FLOWING, 0)


# --- one slot, ten connections


def keep_busy(scene: Scene, nsqd: Nsqd) -> None:
    def refill() -> None:
        if len(nsqd.queue) < 200:
            nsqd.publish(400)
        scene.clock.after(0.1, refill)

    refill()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("adaptive", [False, True])
def test_ten_connections_one_slot_one_busy(seed: int, adaptive: bool) -> None:
    scene = Scene(10, 1, seconds=0.05, seed=seed, adaptive=adaptive)
    start = scene.clock.now
    busy = scene.cluster.nsqds[seed]
    keep_busy(scene, busy)
    scene.clock.run(600.0)
    times = [when for when, _, _ in scene.reader.log]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert times[0] - start < 5.0
    assert len(times) * 0.05 / 600 > 0.85
    assert max(gaps) < 2.5


def test_ten_connections_one_slot_the_others_messages_come_in_time() -> None:
    scene = Scene(10, 1, seconds=0.05)
    keep_busy(scene, scene.cluster.nsqds[0])
    scene.clock.run(60.0)
    for nsqd in scene.cluster.nsqds[1:]:
        nsqd.publish()
        scene.clock.run(33.0)
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


# --- one busy, the others silent


@pytest.mark.parametrize(
    ("nsqds", "max_in_flight", "held", "first"),
    [
        (10, 10, 8.5, 0.5),
        (10, 7, 5.95, 0.5),
        (10, 5, 4.0, 0.6),
        (10, 2, 1.0, 0.6),
        (2, 2, 1.8, 0.6),
        (100, 100, 92.0, 0.6),
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
        scene.clock.run(0.777)
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
    assert (scene.reader.rdys_sent - sent) / 4.0 < 2.1 * Settings().silent_turns_per_second
    assert all(each.nsqd.rdy_log for each in scene.reader.connections)
