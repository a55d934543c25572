"""Signal handlers that raise, as SIGALRM timeouts do, in programs with a Reader.

Whatever code of ours they interrupt, in the hub too, the Reader goes on within seconds, and each publish ends. Each
point is tried in tests/simulation/test_interrupted.py; here, gevent's own hub is interrupted, and threads are used.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemons import Running, running_nsqd
from tests.support.scripts import RAISING, run_script

PATCHED = """
import sys
if sys.argv[2] == "patched":
    from gevent import monkey
    monkey.patch_all()
"""

READER = """
import gevent
from gnsq_like import NsqdHTTPClient, Producer, Reader

def calm_down():  # gevent may throw what was raised in its hub into this greenlet a little later
    for _ in range(3):
        try:
            gevent.sleep(0.05)
        except Late:
            pass

handled = set()
reader = Reader(
    "t", "c", lambda message: handled.add(message.body), nsqd_tcp_addresses=sys.argv[1], max_in_flight=20,
    max_backoff_duration=0, msg_timeout=1.0, max_redial_delay=0.1,
)
reader.start()
gevent.sleep(0)  # the hub begins here: gevent's hub is dead for good once something is raised in its first steps
"""

CONSUMING = """
client = NsqdHTTPClient(sys.argv[3])

while raised < 40:
    try:
        client.multi_publish("t", [b"%d" % number for number in range(40)])
    except (Late, NSQError):  # see calm_down
        pass
    interrupt(lambda: gevent.sleep(0.006), 0.004)  # the hub consumes them, and the alarm comes meanwhile
calm_down()
client.publish("t", b"last")
while b"last" not in handled or client.stats("t")["topics"][0]["channels"][0]["depth"]:
    gevent.sleep(0.05)
print("done")
"""

PUBLISHING = """
producer = Producer(sys.argv[1], timeout=2)
producer.publish("t", b"first")  # starts its thread: the standard library's thread objects survive no exception there
while raised < 150:
    interrupt(lambda: producer.publish("t", b"x" * 1000), 0.003)
calm_down()
producer.publish("t", b"last")
print("done")
"""


@pytest.fixture
def nsqd() -> Iterator[Running]:
    with running_nsqd() as daemon:
        yield daemon


@pytest.mark.parametrize("program", ["patched", "plain"])
def test_a_reader_goes_on_whatever_a_signal_handler_that_raises_interrupts(nsqd: Running, program: str) -> None:
    assert run_script(PATCHED + RAISING + READER + CONSUMING, nsqd.tcp_address, program, nsqd.http_address) == ["done"]


def test_each_publish_beside_a_reader_ends(nsqd: Running) -> None:
    assert run_script(RAISING + READER + PUBLISHING, nsqd.tcp_address) == ["done"]
