"""manage.py nsq_run in development: changed code runs without a restart."""

import os
import re
from itertools import count

import pytest

from gnsq_like import Producer
from tests.support.daemons import running_nsqd, wait_for
from tests.support.django_project import Project
from tests.support.web import channel_of, get

pytestmark = pytest.mark.servers

HEALTH = r"health on http://127\.0\.0\.1:(\d+)/healthz"


@pytest.mark.parametrize("patched", ["", "1"])
def test_changed_code_runs_without_a_restart(project: Project, patched: str) -> None:
    """The running handler may end; the next message meets the new code."""
    module = project.path / "ledger" / "nsq_readers.py"
    with (
        running_nsqd() as nsqd,
        Producer(nsqd.tcp_address) as producer,
        project.running(
            *("nsq_run", "work", "--health", "127.0.0.1:0"),
            listening=HEALTH,
            DEBUG="1",
            NSQ_NSQD_TCP_ADDRESSES=nsqd.tcp_address,
            # Far more seconds than the test waits for an end.
            NSQ_STOP_TIMEOUT="1000",
            PATCHED=patched,
        ) as server,
    ):
        wait_for(lambda: get(server.port, "/healthz")[0] == 200, "the health")
        producer.publish("work", b"0")
        wait_for(lambda: server.noted("ended") == ["0"], "the first message")
        producer.publish("work", b"gate")
        wait_for(lambda: "gate" in server.noted("began"))
        module.write_text(module.read_text().replace('note("ended"', 'note("ended_anew"'))
        # The reloader compares with the time of change that it saw first, which may be after this change.
        seconds = count(int(module.stat().st_mtime) + 1)

        def is_noticed() -> bool:
            second = next(seconds)
            os.utime(module, (second, second))
            return "changed, reloading" in server.log

        wait_for(is_noticed, "the reloader")
        assert server.noted("ended") == ["0"]
        server.open_gate()
        wait_for(lambda: server.log.count("Reading work/workers: work") == 2, "the second start")
        # Ended by the old code, before the new code ran.
        assert server.noted("ended") == ["0", "gate"]
        producer.publish("work", b"0")
        wait_for(lambda: server.noted("ended_anew") == ["0"], "the new code")
        assert channel_of(nsqd, "work")["requeue_count"] == 0
        port = int(re.findall(HEALTH, server.log)[-1])
        wait_for(lambda: get(port, "/healthz")[0] == 200, "the health of the new process")
        server.end()
