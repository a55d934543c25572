"""Repairs a damaged checkpoint or stage, and reports lost and repeated messages.

Spark's log is in the checkpoint::

    metadata        the id of the query, by which the tables know its batches
    offsets/<n>     the end of batch n, written before it is read
    commits/<n>     written when it is done

A file of these that a crash has left empty or cut, or that is gone, ends each run; of one that is gone, Spark says that
a batch does not exist, or that another run uses the checkpoint. What it said is elsewhere, too: the stage has the plans
of batches that are not finished, and the table the id. Spark reads the last two of each directory.

A part of the stage from which something is missing is made complete with all that is intact (``staging_log.examine``).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.staging.offsets import Offset, Offsets, TopicChannel
from gnsq_like.spark.staging.records import DamagedRecord, End
from gnsq_like.spark.staging.staging_log import StagingLog, base_of, examine, mend_part
from gnsq_like.spark.staging.store import StagingError, open_store
from gnsq_like.spark.tables.data_file import batch_name, list_names

_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
#: Of a file in ``offsets``, before the line of the source.
_FIRST_LINES = ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}']
_SCHEME = "file://"


class TableProblem(NamedTuple):
    """Something that is damaged."""

    #: The damage and the effect of the repair, as a sentence.
    text: str
    #: Repairs it; None if that is not possible.
    mend: Callable[[], object] | None


def check_checkpoint(pipeline: Pipeline) -> None:
    """Raise NotBegun if a pipeline has made the checkpoint that dropped copies by Spark's state, or if a file of it is
    damaged, as far as it is a directory."""
    checkpoint = pipeline.place("checkpoint")
    if list_names(f"{checkpoint}/state"):
        raise NotBegun(
            f"the checkpoint {checkpoint} is that of an older gnsq_like, which dropped copies by Spark's state. The "
            f"source does that now: remove {checkpoint}/state, and the pipeline continues, with nothing lost and "
            f"nothing twice. Or end it with the older version, in a run with --available-now"
        )
    if not checkpoint.startswith(_SCHEME):
        return
    for problem in _Checkpoint(pipeline).problems():
        raise NotBegun(f"{problem.text}; gnsq-like pipeline repair does it")


def find_problems(pipeline: Pipeline) -> list[TableProblem]:
    """All that is damaged. Reads the whole stage of batches that are not finished.

    :raises NotBegun: the checkpoint is not in a directory
    :raises StagingError: the stage cannot be opened
    """
    place = pipeline.place("checkpoint")
    if not place.startswith(_SCHEME):
        raise NotBegun(f"the checkpoint {place} is not in a directory of this machine, so it cannot be repaired")
    checkpoint = _Checkpoint(pipeline)
    return [*checkpoint.problems(), *_stage_problems(pipeline, checkpoint)]


class _Checkpoint:
    """The last files of a checkpoint."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._root = Path(pipeline.place("checkpoint").removeprefix(_SCHEME))
        self._offsets, self._commits = self._numbers("offsets"), self._numbers("commits")
        #: The last batch that was written down; -1 for none. A batch that is done was written down before.
        self.last = max(self._offsets | self._commits, default=-1)

    def _numbers(self, name: str) -> set[int]:
        directory = self._root / name
        return {int(path.name) for path in directory.iterdir() if path.name.isdigit()} if directory.is_dir() else set()

    @property
    def is_done(self) -> bool:
        """Whether the last batch is done, by its file in ``commits``."""
        return self.last in self._commits and _lines(self._root / "commits" / str(self.last), 2) is not None

    def offsets(self, number: int) -> Offsets | None:
        """The end of a batch; None if its file is damaged."""
        lines = _lines(self._root / "offsets" / str(number), 3)
        try:
            named = self._pipeline.source_options.named
            return Offsets.from_dict(json.loads(lines[2]), named) if lines is not None else None
        except (ValueError, StagingError):
            return None

    def problems(self) -> Iterator[TableProblem]:
        """The damaged files."""
        if self.last < 0:
            return
        yield from self._metadata()
        if self.offsets(self.last) is None:
            yield self._last_offsets()
        elif self.last and self.offsets(self.last - 1) is None:
            yield self._offsets_before()
        last_commit = max(self._commits, default=-1)
        if last_commit in {self.last, self.last - 1} and last_commit >= 0:
            path = self._root / "commits" / str(last_commit)
            if _lines(path, 2) is None:
                yield self._commit(path, last_commit)

    def _metadata(self) -> Iterator[TableProblem]:
        path = self._root / "metadata"
        lines = _lines(path, 1)
        if lines is not None:
            return
        text = f"{_state(path)}, which has the id of the query"
        owners = self._owners()
        if len(owners) == 1:
            yield _written_anew(path, text, ", as the table knows it", json.dumps({"id": owners.pop()}))
        elif not self._commits and not owners:
            yield TableProblem(f"{text}: no batch has been written, so another id does", lambda: _remove(path))
        else:
            yield TableProblem(
                f"{text}: no table says which id that was, so it cannot be repaired. Give the pipeline another "
                f"checkpoint, and run once with --adopt: its last batch may then come twice",
                None,
            )

    def _owners(self) -> set[str]:
        """The ids of the queries that have written the pipeline's tables."""
        places = [self._pipeline.for_topic(topic).place("data") for topic in self._pipeline.topics]
        roots = [Path(each.removeprefix(_SCHEME)) for each in [self._pipeline.place("data"), *places]]
        found = [path for root in roots for each in ("_pipeline/*", "*/_pipeline/*") for path in root.glob(each)]
        return {path.name for path in found if not path.name.startswith(".")}

    def _last_offsets(self) -> TableProblem:
        path = self._root / "offsets" / str(self.last)
        text = _state(path)
        if not self.is_done:
            meaning = "it is removed, and the batch planned again with the same messages. Nothing is lost, and nothing "
            meaning += "is twice in a table; its dead letters may be"
            return TableProblem(f"{text}: {meaning}", lambda: self._plan_again(path))
        before = self.offsets(self.last - 1) if self.last else Offsets()
        ends = {} if before is None else _planned_after(self._pipeline, before)
        if before is None or not ends:
            return TableProblem(
                f"{text}, and what it said is not in the stage, so it cannot be repaired. Give the pipeline another "
                f"checkpoint and another stage; batches that are written are not lost, but what the stage has is",
                None,
            )
        value = json.dumps(before.after(ends, 0).to_dict())
        lines = _lines(self._root / "offsets" / str(self.last - 1), 3) or _FIRST_LINES
        return _written_anew(path, text, " from the stage", "\n".join((*lines[:2], value)))

    def _plan_again(self, path: Path) -> None:
        """Remove what the batch has written so far: as its time is not known, it would not be replaced."""
        lines = _lines(self._root / "metadata", 1)
        if lines is not None:
            name = f"batch={batch_name(json.loads(lines[0])['id'], self.last)}"
            pipeline = self._pipeline
            tables = [each.place("data") for each in (pipeline, *map(pipeline.for_topic, pipeline.topics))]
            tables += [pipeline.place(each) for each in ("rejected", "metrics", "archive")]
            for place in tables:
                if place.startswith(_SCHEME):
                    for directory in Path(place.removeprefix(_SCHEME)).rglob(name):
                        shutil.rmtree(directory)
        _remove(path)

    def _offsets_before(self) -> TableProblem:
        path = self._root / "offsets" / str(self.last - 1)
        last = self.offsets(self.last)
        assert last is not None
        logs = {
            of: replace(each, batch=each.batch - 1 if each.plan else each.batch, plan={})
            for of, each in last.logs.items()
        }
        lines = _lines(self._root / "offsets" / str(self.last), 3) or []
        content = "\n".join((*lines[:2], json.dumps(Offsets(logs).to_dict())))
        return _written_anew(path, _state(path), ", from the one after it", content)

    def _commit(self, path: Path, number: int) -> TableProblem:
        if number < self.last:
            return _written_anew(path, _state(path), "", _COMMIT)
        meaning = "it is removed, and the batch is repeated. Nothing is lost, and nothing is twice in a table; its dead"
        return TableProblem(f"{_state(path)}: {meaning} letters are published again", lambda: _remove(path))


def _planned_after(pipeline: Pipeline, before: Offsets) -> dict[TopicChannel, Offset]:
    """The batches that were planned next, by the stage."""
    store = open_store(pipeline.source_options.staging_location, pipeline.source_options.storage)
    found: dict[TopicChannel, Offset] = {}
    for of in {*before.logs, *pipeline.source_options.named}:
        base = base_of(*of)
        if of in before.logs:
            logs = {before.logs[of].log}
        else:
            logs = set(re.findall(r"/log-([^/]+)/batch-0{11}1/plan\.json$", "\n".join(store.list(base)), re.MULTILINE))
        for log in logs:
            number = before.logs[of].batch + 1 if of in before.logs else 1
            planned = StagingLog(store, base, log).plan_of(number)
            if planned is not None:
                found[of] = planned
    return found


# -- the stage ------------------------------------------------------------------------------------------


def _stage_problems(pipeline: Pipeline, checkpoint: _Checkpoint) -> Iterator[TableProblem]:
    """Missing records of batches that Spark still reads."""
    offsets = checkpoint.offsets(checkpoint.last) if checkpoint.last >= 0 else None
    if offsets is None:
        return
    options = pipeline.source_options
    store = open_store(options.staging_location, options.storage)
    for of, offset in offsets.logs.items():
        log = StagingLog(store, base_of(*of), offset.log)
        if not checkpoint.is_done and offset.plan and log.committed() < offset.batch:
            yield from _batch_problems(options.staging_location, log, of, offset)
        following = offset.batch + 1
        try:
            log.plan_of(following)
        except DamagedRecord as exc:
            text = f"{options.staging_location}: {exc}: it is removed, and the batch planned anew. Nothing is lost"
            yield TableProblem(text, lambda log=log, name=exc.name: log.store.retire(name))  # type: ignore[misc]


def _batch_problems(location: str, log: StagingLog, of: TopicChannel, offset: Offset) -> Iterator[TableProblem]:
    count = sum(share.messages for share in offset.plan.values())
    try:
        planned = log.plan_of(offset.batch)
    except DamagedRecord as exc:
        name = exc.name
        meaning = "it is written anew, from the checkpoint. Nothing is lost"
        yield TableProblem(f"{location}: {exc}: {meaning}", lambda: _plan_anew(log, name, offset))
    else:
        if planned is None:
            meaning = f"up to {count} messages are lost, which nsqd may not have any more"
            yield TableProblem(
                f"{location}: batch {offset.batch} of {of} is gone: {meaning}. The pipeline continues without them",
                lambda: _give_up(log, of, offset),
            )
            return
    for part in offset.parts(of):
        state = examine(log, part)
        if state.damage:
            text = f"{location}: {state.damage}. The pipeline continues with all others of them"
            yield TableProblem(text, lambda part=part: mend_part(log, part))  # type: ignore[misc]


def _plan_anew(log: StagingLog, name: str, offset: Offset) -> None:
    log.store.retire(name)
    log.write_plan(offset)


def _give_up(log: StagingLog, of: TopicChannel, offset: Offset) -> None:
    log.create()
    log.write_plan(offset)
    parts = offset.parts(of)
    log.make_parts(parts)
    for part in parts:
        log.seal(part, End(0, 0, "mended"), 0)


# -- files ----------------------------------------------------------------------------------------------


def _lines(path: Path, count: int) -> list[str] | None:
    """The lines of a file of Spark's log; None if it is gone, or has fewer lines, or something else than JSON."""
    try:
        lines = path.read_text().splitlines()
        for line in lines[count > 1 :]:
            json.loads(line)
    except (OSError, ValueError):
        return None
    return lines if len(lines) >= count else None


def _state(path: Path) -> str:
    return f"{path} is {'damaged' if path.exists() else 'gone'}"


def _written_anew(path: Path, text: str, source: str, content: str) -> TableProblem:
    meaning = f"it is written anew{source}. Nothing is lost, and nothing comes again"
    return TableProblem(f"{text}: {meaning}", lambda: _write(path, content))


def _write(path: Path, content: str) -> None:
    _remove(path)
    path.write_text(content)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    # Hadoop's checksum of it, which would be wrong.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
