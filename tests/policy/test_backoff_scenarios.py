"""What went wrong in other clients' backoff (docs/internals, Faults of other clients, go-nsq's issues by number),
replayed on the simulated cluster, and handlers that hang. `Cluster` checks the window, the block and every plan by
itself in all of them."""

from __future__ import annotations

import pytest

from gnsq_like.policy.rdy import Mode
from tests.support.scenes import SOON, Scene
from tests.support.virtual_nsqd import Message, Nsqd


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
