"""The source's part in Spark's executors: the rows of a part.

A thread with a hub of its own fills the part, and Spark gets its segments as they are published. So nsqd is served
on time however long Spark takes for a row, and both work at once. A published segment is final even if the task
fails, so every attempt gives the same rows. The thread ends with its part, also if Spark wants no more rows.
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
    """Fill the part unless that is done, and yield its rows; they are the same for every attempt.

    :param open_store: opens the staging location
    :param connection: the class of the connection to nsqd
    :raises StagingError: the staging location does not have the log here
    :raises Fenced: the batch is finished, so its rows are not needed any more
    :raises ConnectionFailed: nsqd refuses an option of the connection
    """
    log = StagingLog(open_store(options.staging_location, options.storage), base_of(*part.of), part.log)
    if not log.exists():
        raise StagingError(
            f"staging_location {options.staging_location} is not the driver's: on this executor, the log is missing "
            f"from it. It must be a place that the driver and all executors share"
        )
    rows = Rows(options.columns, *part.of, part.address)
    for number in _in_background(lambda note: StreamReceiver(part, log, options, note, connection).run()):
        data = log.record(part, number)
        if data is None:
            raise StagingError(f"segment {number} of {log.place(part)} is gone while its batch is read")
        yield rows.of(data)


def _in_background(job: Callable[[Callable[[int], None]], None]) -> Iterator[int]:
    """Run ``job(note)`` in a thread; yield each number that it notes, and raise its exception."""
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
