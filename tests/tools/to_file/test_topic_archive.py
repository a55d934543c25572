"""When messages are synced."""

from pathlib import Path

from gevent.event import Event

from gnsq_like.runtime.thread_pool import ThreadPool
from gnsq_like.tools.consuming import Consumption
from gnsq_like.tools.sources import Source
from gnsq_like.tools.to_file.log_file import LogFile
from gnsq_like.tools.to_file.outputs import make_output
from gnsq_like.tools.to_file.plan import FilePlan
from gnsq_like.tools.to_file.topic_archive import TopicArchive
from tests.support.daemons import running_nsqd, wait_for
from tests.support.tools import counts, fill, numbered


def test_when_nsqd_delivers_no_more_although_nothing_arrives(tmp_path: Path) -> None:
    """Here the share is lowered after the last message has come."""
    plan = FilePlan(output_dir=str(tmp_path))
    with running_nsqd() as nsqd:
        consumption = Consumption(Source((nsqd.tcp_address,), options={"max_in_flight": 100}), Event())
        log_file = LogFile(plan, "t", make_output(plan))
        archive = TopicArchive("t", "c", log_file, consumption, ThreadPool(1), interval=3600.0)
        fill(nsqd, "t", [b"first"], "c")
        wait_for(lambda: archive.finished == 1)  # the first one of a file is synced at once
        fill(nsqd, "t", numbered(10))
        wait_for(lambda: counts(nsqd, "t", "c")["in_flight"] == 10)
        assert archive.finished == 1
        archive.reader.max_in_flight = 10
        wait_for(lambda: archive.finished == 11)
        consumption.end()
        archive.end()
