"""What went wrong in other clients' backoff (docs/internals, Faults of other clients, go-nsq's issues by number),
replayed, and handlers that hang. The Scene checks the window and the block by itself in all of them."""

from __future__ import annotations

from random import Random

import pytest

from gnsq_like import Message
from tests.simulation import Cluster
from tests.simulation.scene import SOON, Nsqd, Scene, scenario


@scenario
def test_g6_stale_results_do_not_steer_backoff(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 10, backoff=True)
    times = iter([0.01, *[2.5] * 9])  # one fails at once; nine finish while the water is tested
    scene.requeue_delay = 1000.0
    scene.handle = lambda _m: (next(times), "requeue" if scene.handled == 1 else "finish")
    for nsqd in scene.nsqds:
        nsqd.publish(5)
    scene.run(2.2)
    assert scene.mode == "probing"
    scene.run(1.0)
    assert scene.level == 1, "nine messages of before finished and changed nothing"
    scene.seconds = 0.01
    scene.handle = scene.usual
    for nsqd in scene.nsqds:
        nsqd.publish(1)
    scene.run(1.0)
    assert scene.mode == "flowing"


@scenario
def test_g7_one_test_message_for_each_block_however_fast_it_is_answered(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 10, seconds=0.0, backoff=True)
    scene.verdicts = ["requeue"] * 4
    scene.nsqds[0].publish(1)
    scene.until("blocked")
    scene.nsqds[0].publish(50)
    scene.run(2 + 4 + 8 + 1)
    times = [when for when, _, _ in scene.log]
    waits = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert waits == pytest.approx([2, 4, 8], abs=0.01)


@scenario
def test_p1_successes_within_the_block_change_nothing(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 10, seconds=0.1, backoff=True)
    scene.verdicts = ["requeue"]
    scene.nsqds[0].publish(30)
    scene.run(0.15)
    assert scene.handled == 10
    assert (scene.mode, scene.level) == ("blocked", 1)
    scene.run(2.05)
    assert scene.handled == 11, "a test message comes before full throttle"
    scene.run(SOON + 0.1)
    assert scene.mode == "flowing"
    assert scene.rdys == [10]


@scenario
def test_pynsq_75_resuming_during_the_block_still_leaves_backoff(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 5, backoff=True)
    scene.verdicts = ["requeue"]
    scene.nsqds[0].publish(10)
    scene.until("blocked")
    scene.set_max_in_flight(0)
    scene.set_max_in_flight(5)
    scene.run(5.0)
    assert scene.mode == "flowing"
    assert scene.rdys == [5]


@scenario
def test_pynsq_89_go_nsq_128_requeue_without_backoff_as_test_result_does_not_stall(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 6, backoff=True)
    scene.verdicts = ["requeue", *["finish"] * 5, "quiet", "quiet"]
    for nsqd in scene.nsqds:
        nsqd.publish(10)
    scene.run(10.0)
    assert scene.mode == "flowing"
    assert scene.finished == 20


@scenario
def test_go_nsq_106_a_connection_lost_during_the_block(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 6, backoff=True)
    scene.verdicts = ["requeue"]
    scene.nsqds[0].publish(1)
    scene.until("blocked")
    scene.nsqds[0].lose()
    scene.nsqds[1].publish(10)
    scene.run(5.0)
    assert scene.nsqds[1].finished == 10
    assert scene.rdys[1] == 6


@scenario
def test_go_nsq_130_the_connection_that_holds_the_test_rdy_dies_without_a_message(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 6, backoff=True)
    scene.verdicts = ["requeue"]
    scene.nsqds[0].publish(1)
    scene.requeue_delay = 1000.0
    scene.until("probing")
    scene.run(0.001)
    holder = scene.rdys.index(1)
    scene.nsqds[holder].lose()
    scene.nsqds[1 - holder].publish(10)
    scene.run(1.0)
    assert scene.nsqds[1 - holder].finished == 10
    assert scene.mode == "flowing"


@pytest.mark.parametrize("answer", ["finish", "requeue"])
@scenario
def test_go_nsq_131_the_connection_that_holds_the_test_message_dies(cluster: Cluster, answer: str) -> None:
    scene = Scene(cluster, 2, 6, backoff=True)
    scene.verdicts = ["requeue"]
    scene.nsqds[0].publish(1)
    scene.until("blocked")
    scene.seconds = 3.0
    scene.verdicts = [answer]
    for nsqd in scene.nsqds:
        nsqd.publish(10)
    scene.until("probing")
    scene.run(SOON)
    scene.seconds = 0.01
    scene.log[-1][1].lose()
    scene.run(2.0)
    assert scene.mode == "flowing", "another connection's message decided"
    scene.run(10.0)
    assert scene.mode == "flowing", "the late answer of the lost one did not"


@pytest.mark.parametrize("when", ["blocked", "probing"])
@scenario
def test_go_nsq_132_the_only_connection_dies_in_backoff_and_another_comes(cluster: Cluster, when: str) -> None:
    scene = Scene(cluster, 1, 6, spare=1, backoff=True)
    scene.verdicts = ["requeue"]
    scene.nsqds[0].publish(1)
    scene.until(when)
    scene.run(0.01)
    scene.nsqds[0].lose()
    scene.run(30.0)
    scene.join(10)
    scene.run(1.0)
    assert scene.nsqds[1].finished == 10
    assert scene.mode == "flowing"


@scenario
def test_go_nsq_222_max_in_flight_0_is_rdy_0_and_can_be_left_again(cluster: Cluster) -> None:
    scene = Scene(cluster, 2, 6)
    scene.set_max_in_flight(0)
    scene.run(SOON)
    assert scene.rdys == [0, 0]
    for nsqd in scene.nsqds:
        nsqd.publish(10)
    scene.run(60.0)
    assert scene.handled == 0
    scene.set_max_in_flight(6)
    scene.run(1.0)
    assert scene.handled == 20


@scenario
def test_a_probe_finds_the_one_nsqd_that_has_messages(cluster: Cluster) -> None:
    scene = Scene(cluster, 10, 10, backoff=True)
    scene.verdicts = ["requeue"]
    scene.nsqds[7].publish(20)
    scene.until("probing")
    scene.run(10 * 0.26)
    assert scene.mode == "flowing"


@pytest.mark.parametrize(("nsqds", "hung", "adaptive"), [(1, 11, True), (2, 6, False), (4, 3, True), (4, 11, False)])
@scenario
def test_hung_handlers_cut_off_no_connection_while_they_leave_anything(
    cluster: Cluster, nsqds: int, hung: int, adaptive: bool
) -> None:
    scene = Scene(cluster, nsqds, 12, adaptive=adaptive, msg_timeout=1.0)
    to_hang = hung

    def handle(_message: Message) -> tuple[float, str]:
        nonlocal to_hang
        to_hang -= 1
        return 0.01 if to_hang < 0 else 1e6, "finish"

    scene.handle = handle
    scene.nsqds[0].publish(hung)
    scene.run(30.0)
    assert to_hang < 0
    for nsqd in scene.nsqds:
        nsqd.publish(50)
    scene.run(10.0)
    assert all(nsqd.finished >= 50 for nsqd in scene.nsqds)
    assert (scene.running, scene.most_running) == (hung, 12)


@pytest.mark.parametrize(
    ("nsqds", "share", "adaptive", "failing", "seconds"),
    [(1, 2, True, 0.1, 0.3), (3, 3, False, 0.3, 0.01), (4, 10, True, 1.0, 0.0)],
)
@scenario
def test_hung_handlers_and_failures_never_stop_a_reader_that_has_room(
    cluster: Cluster, nsqds: int, share: int, adaptive: bool, failing: float, seconds: float
) -> None:
    max_in_flight, random = share * nsqds, Random(1)
    scene = Scene(cluster, nsqds, max_in_flight, backoff=True, adaptive=adaptive, msg_timeout=1.0)
    scene.requeue_delay = 0.1
    to_hang = max_in_flight - 1

    def handle(_message: Message) -> tuple[float, str]:
        nonlocal to_hang
        if to_hang and random.random() < 0.3:
            to_hang -= 1
            return 1e6, "finish"
        verdict = random.choice(["requeue", "requeue", "quiet"]) if random.random() < failing else "finish"
        return seconds * random.choice([0, 1, 1, 2]), verdict

    scene.handle = handle
    for nsqd in scene.nsqds:
        nsqd.publish(20)
    scene.run(5.0)
    scene.handle = scene.usual
    for nsqd in scene.nsqds:
        nsqd.publish(20)
    scene.run(60.0)
    assert sum(nsqd.waiting for nsqd in scene.nsqds) == 0, "stalled"
    assert scene.mode == "flowing"
    assert scene.most_running <= max_in_flight


@scenario
def test_an_nsqd_whose_handlers_hung_when_it_was_lost_is_served_again_at_once(cluster: Cluster) -> None:
    scene = Scene(cluster, 3, 30, spare=1, seconds=1e6)
    scene.nsqds[0].publish(10)
    scene.run(SOON)
    scene.seconds = 0.01
    scene.nsqds[0].lose()
    scene.run(SOON)
    assert scene.rdys == [0, 10, 10]
    scene.join(50)
    scene.run(1.0)
    assert sorted(scene.rdys) == [0, 6, 7, 7]
    assert scene.nsqds[3].finished == 50


def hang_one_and_fail_the_next(scene: Scene, nsqd: Nsqd, seconds: float) -> None:
    """The first handler takes `seconds`; the next message, once that is so long overdue, fails; others finish."""
    nsqd.publish()
    scene.seconds = seconds
    scene.run(2.0)
    scene.seconds = 0.01
    scene.verdicts = ["requeue"]
    nsqd.publish()
    scene.until("blocked")


@pytest.mark.parametrize(("nsqds", "adaptive"), [(1, True), (3, False)])
@scenario
def test_a_hung_handler_and_a_failure_do_not_stop_the_reader(cluster: Cluster, nsqds: int, adaptive: bool) -> None:
    scene = Scene(cluster, nsqds, 10, backoff=True, adaptive=adaptive, msg_timeout=1.0)
    nsqd = scene.nsqds[0]
    hang_one_and_fail_the_next(scene, nsqd, 1000.0)
    nsqd.publish(100)
    scene.run(5.0)
    assert scene.mode == "flowing"
    assert nsqd.finished > 100
    assert scene.most_running <= 10


@scenario
def test_a_test_message_that_hangs_beside_a_hung_handler_is_followed_by_another(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 10, backoff=True, msg_timeout=1.0)
    nsqd = scene.nsqds[0]
    hang_one_and_fail_the_next(scene, nsqd, 1000.0)
    scene.seconds = 1000.0
    before = scene.handled
    nsqd.publish(100)
    scene.until("probing")
    scene.run(0.5)
    assert (scene.handled - before, scene.rdys) == (1, [1]), "one test message at a time"
    scene.seconds = 0.01
    scene.run(5.0)
    assert scene.mode == "flowing"
    assert nsqd.finished > 100


@pytest.mark.parametrize("nsqds", [1, 3])
@scenario
def test_at_max_in_flight_1_nothing_is_tested_beside_a_hung_handler(cluster: Cluster, nsqds: int) -> None:
    scene = Scene(cluster, nsqds, 1, backoff=True, msg_timeout=1.0)
    scene.verdicts = ["requeue"]
    for nsqd in scene.nsqds:
        nsqd.publish(3)
    scene.until("probing")
    scene.seconds = 30.0
    scene.run(1.0)
    scene.seconds = 0.01
    before = scene.handled
    scene.run(25.0)
    assert scene.handled == before
    scene.run(20.0)
    assert scene.most_running == 1
    assert all(nsqd.finished for nsqd in scene.nsqds)


@scenario
def test_a_test_waits_for_handlers_that_still_run(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 50, backoff=True)
    nsqd = scene.nsqds[0]
    hang_one_and_fail_the_next(scene, nsqd, 8.0)
    nsqd.publish(100)
    scene.run(5.5)
    assert (scene.mode, scene.handled) == ("probing", 2)
    scene.run(3.0)
    assert scene.handled > 100


@scenario
def test_many_failures_then_success_steps_down_one_by_one(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 5, backoff=True)
    scene.verdicts = ["requeue"] * 4
    scene.nsqds[0].publish(1)
    scene.run(2 + 4 + 8 + 1)
    assert (scene.mode, scene.level) == ("blocked", 4)
    scene.nsqds[0].publish(20)
    scene.run(16)
    assert (scene.mode, scene.level) == ("blocked", 3)
    scene.run(8 + 4 + 2)
    assert (scene.mode, scene.level) == ("flowing", 0)
