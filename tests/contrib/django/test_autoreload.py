"""manage.py nsq_run in development: changed code runs without a restart."""

import re
import time

import gevent
import pytest

from gnsq_like import Producer
from tests.support.daemons import running_nsqd, wait_for
from tests.support.web import channel_of, get

HEALTH = r"health on http://127\.0\.0\.1:(\d+)/healthz"


@pytest.mark.parametrize("patched", ["", "1"])
def test_changed_code_runs_without_a_restart(project, patched):
    """The handler that runs may end; the next message meets the new code."""
    module = project.path / "ledger" / "nsq_readers.py"
    with (
        running_nsqd("process") as nsqd,
        Producer(nsqd.tcp_address) as producer,
        project.running(
            *("nsq_run", "work", "--health", "127.0.0.1:0"),
            listening=HEALTH,
            DEBUG="1",
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
            PATCHED=patched,
        ) as server,
    ):
        wait_for(lambda: get(server.port, "/healthz")[0] == 200, "the health")
        producer.publish("work", b"0")
        wait_for(lambda: server.noted("ended") == ["0"], "the first message", 30)
        producer.publish("work", b"3.5")
        wait_for(lambda: "3.5" in server.noted("began"))
        # The reloader sees times of change that are later than those it saw first: a second later at least.
        gevent.sleep(1.1)
        module.write_text(module.read_text().replace('note("ended"', 'note("ended_anew"'))
        wait_for(lambda: "changed, reloading" in server.log, "the reloader", 30)
        wait_for(lambda: server.log.count("Reading work/workers: work") == 2, "the second start", 30)
        # Ended by the old code, before the new code ran.
        assert server.noted("ended") == ["0", "3.5"]
        producer.publish("work", b"0")
        wait_for(lambda: server.noted("ended_anew") == ["0"], "the new code", 30)
        assert channel_of(nsqd, "work")["requeue_count"] == 0
        port = int(re.findall(HEALTH, server.log)[-1])
        wait_for(lambda: get(port, "/healthz")[0] == 200, "the health of the new process")
        began = time.monotonic()
        server.end()
        assert time.monotonic() - began < 10
