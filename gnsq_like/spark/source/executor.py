"""What Spark's executors ask of the source: the rows of a part.

The part is filled by a thread of its own, with a hub of its own, and its segments are handed to Spark as they are
published. So nsqd is served on time however long Spark takes over a row, and both go on at once. A segment is
final when it is published, whatever becomes of the task: rows are the same for every attempt. The thread ends
with its part, also when nobody wants the rows any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread

import gevent
import pyarrow as pa

from gnsq_like import Connection
from gnsq_like.spark.options import SourceOptions
from gnsq_like.spark.source.stream_receiver import StreamReceiver
from gnsq_like.spark.staging.errors import StagingError
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.segments import Rows
from gnsq_like.spark.staging.staging_log import StagingLog, base_of
from gnsq_like.spark.staging.store import OpenStore, open_store


def read_part(
    part: Part,
    options: SourceOptions,
    *,
    open_store: OpenStore = open_store,
    connection: type[Connection] = Connection,
) -> Iterator[pa.RecordBatch]:
    """Fill the part if that is not done, and give its rows; always the same for the same part.

    :param open_store: opens the staging location
    :param connection: what connects to nsqd
    :raises StagingError: the staging location is not seen from here
    :raises Fenced: the batch is finished, nobody wants its rows any more
    :raises ConnectionFailed: nsqd refuses what the options ask for
    """
    log = StagingLog(
        open_store(options.staging_location, options.storage), base_of(options.topic, options.channel), part.log
    )
    if not log.exists():
        raise StagingError(
            f"stagingLocation {options.staging_location} is not what it is for the driver: its log is not there on "
            f"this executor. It must be a place that the driver and all executors share"
        )
    rows = Rows(options.columns, options.topic, options.channel, part.address)
    for number in _in_background(lambda note: StreamReceiver(part, log, options, note, connection).run()):
        data = log.record(part, number)
        if data is None:
            raise StagingError(f"segment {number} of {log.place(part)} is gone while its batch is read")
        yield rows.of(data)


def _in_background(job: Callable[[Callable[[int], None]], None]) -> Iterator[int]:
    """The numbers that ``job(note)`` notes in a thread of its own; then what it raises, if it does."""
    noted: SimpleQueue[int | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            job(noted.put)
            noted.put(None)
        except BaseException as exc:
            noted.put(exc)
        finally:
            gevent.get_hub().destroy(destroy_loop=True)

    thread = Thread(target=work, name="gnsq_like receiver", daemon=True)
    thread.start()
    try:
        while (item := noted.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        thread.join()
