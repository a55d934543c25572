"""Checks whether a pipeline could run, for ``gnsq-like pipeline check``: all checks, in one list. Nothing is written.

A run itself stops at its first failed check; this continues. ``offline`` leaves out checks that need a daemon.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gnsq_like.addresses import shown
from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline.config import Pipeline, load_pipeline
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.reachable import check_sink
from gnsq_like.spark.pipeline.transform import load_function
from gnsq_like.spark.sink import SinkOptions
from gnsq_like.spark.source.nsqds import Nsqds

#: Bytes that must be free where the pipeline writes.
_LEAST_FREE = 64 << 20


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one check."""

    what: str
    #: A file, a topic, a place, or addresses.
    which: str
    found: str
    #: The problem, as a sentence; "" for none.
    problem: str = ""


def check_pipeline(path: str | Path, *, offline: bool = False) -> Iterator[Checked]:
    """Check the pipeline of a file, step by step. May switch.

    :param offline: leave out what needs a daemon
    """
    try:
        pipeline = load_pipeline(path)
    except NSQError as exc:
        yield Checked("configuration", str(path), "", str(exc))
        return
    yield Checked("configuration", str(path), "ok")
    is_wrong = False
    for what, which, check in _checks(pipeline, offline):
        if what == "Spark" and is_wrong:
            yield Checked(what, which, "not checked: something else is wrong")
            continue
        try:
            yield Checked(what, which, check())
        except NSQError as exc:
            is_wrong = True
            yield Checked(what, which, "", str(exc))


def _checks(pipeline: Pipeline, offline: bool) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """The checks: the kind, the object, and a function that returns the result or raises."""
    options, sink = pipeline.source_options, pipeline.sink_options
    for own in [pipeline.for_topic(topic) for topic in pipeline.topics] or [pipeline]:
        if "function" in own.transform:
            yield "function", own.transform["function"], partial(_function, own)
    if not offline:
        asked = [*options.lookupd_http_addresses, *options.nsqd_http_addresses]
        yield "daemons", ", ".join(map(shown, asked)), partial(_daemons, pipeline)
        if sink is not None:
            yield "dead letters", str(sink.topic), partial(_dead_letters, sink)
    places = [pipeline.place(name) for name in ("data", "rejected", "metrics", "checkpoint")]
    for place in dict.fromkeys([*places, *([pipeline.archive] * bool(pipeline.archive)), options.staging_location]):
        yield "disk", place, partial(_disk, place)
    yield "Spark", "schemas, SQL, and the tables as they are", partial(_spark, pipeline)


def _function(pipeline: Pipeline) -> str:
    load_function(pipeline.transform, "transform")
    return "ok"


def _daemons(pipeline: Pipeline) -> str:
    daemons = Nsqds(pipeline.source_options, creates=False)
    daemons.prepare()
    depths = daemons.depths()
    if daemons.away:
        raise NotBegun(f"no answer from {', '.join(sorted(daemons.away))}")
    waiting = sum(depth.messages for depth in depths.values())
    found = f"{len({queue.address for queue in depths})} nsqds, {waiting:,} messages wait"
    return "; ".join([found, *daemons.doubts()])


def _dead_letters(options: SinkOptions) -> str:
    check_sink(options)
    return "an nsqd takes them"


def _disk(place: str) -> str:
    if place.startswith("file://"):
        place = place.removeprefix("file://")
    if "://" in place:
        return "not checked: no directory"
    directory = next(each for each in (Path(place), *Path(place).parents) if each.exists())
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        raise NotBegun(f"{directory} is no directory that can be written")
    free = shutil.disk_usage(directory).free
    if free < _LEAST_FREE:
        raise NotBegun(f"a disk is full: {directory} has {free >> 20} MiB left")
    return f"{free >> 30:,} GiB free"


def _spark(pipeline: Pipeline) -> str:
    from gnsq_like.spark.pipeline.batches import BatchWriter
    from gnsq_like.spark.pipeline.owners import Owner
    from gnsq_like.spark.pipeline.run import session_for
    from gnsq_like.spark.pipeline.selecting import stream_of

    with session_for(pipeline, None, "local[1]", "OFF") as session:
        owner = Owner(pipeline.place("checkpoint"))
        _, plan = stream_of(pipeline, session)
        BatchWriter(pipeline, plan, lambda: None, lambda _: None, owner=owner).check()
    return "ok"
