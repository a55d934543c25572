"""A stage from which something is missing: the run ends and names it, or goes on with all that is intact."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.executor import read_part
from gnsq_like.spark.staging.offsets import Part
from gnsq_like.spark.staging.records import Record, decode_record, decode_segment
from gnsq_like.spark.staging.store import DataLost, Fenced
from tests.support.daemons import Running, running_nsqd
from tests.support.spark_engine import PATIENT, Engine, publish, run_killed, source_options


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


@pytest.fixture(scope="module")
def complete(nsqd: Running, tmp_path_factory: pytest.TempPathFactory) -> tuple[SourceOptions, Part, Path]:
    """The stage of a part of 500 messages that is sealed and confirmed."""
    directory = tmp_path_factory.mktemp("complete")
    publish(nsqd, "missing", range(500))
    engine = Engine(directory, source_options([nsqd], directory, "missing", **PATIENT))
    start = engine.driver.initial()
    [part] = engine.driver.parts(start, engine.driver.latest(start))
    assert len(bodies(part, engine.options)) == 500
    return engine.options, part, directory / "stage"


class Copy:
    """A copy of that stage, for a test to damage."""

    def __init__(self, complete: tuple[SourceOptions, Part, Path], directory: Path) -> None:
        options, self.part, stage = complete
        shutil.copytree(stage, directory / "stage")
        self.options = replace(options, staging_location=str(directory / "stage"))
        #: The bodies in each segment.
        self.segments = segments(self.part, self.options)
        #: Where its records are.
        [self.place] = [path.parent for path in (directory / "stage").rglob("000000")]

    def record(self, which: str) -> Path:
        count = len(self.segments)
        number = {"first": 0, "middle": count // 2, "last": count - 1, "END": count}[which]
        return self.place / f"{number:06d}"

    def without(self, *numbers: int) -> list[int]:
        """The bodies of the other segments."""
        kept = [each for number, each in enumerate(self.segments) if number not in numbers]
        return [body for each in kept for body in each]


@pytest.fixture
def copy(complete: tuple[SourceOptions, Part, Path], tmp_path: Path) -> Copy:
    return Copy(complete, tmp_path)


def segments(part: Part, options: SourceOptions) -> list[list[int]]:
    return [[int(body) for body in batch.column("body").to_pylist()] for batch in read_part(part, options)]


def bodies(part: Part, options: SourceOptions) -> list[int]:
    return [body for each in segments(part, options) for body in each]


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        data[{"flip-header": 2, "flip": len(data) // 2, "flip-end": len(data) - 1}[how]] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["delete", "cut", "empty", "flip-header", "flip", "flip-end"])
@pytest.mark.parametrize("which", ["first", "middle", "last", "END"])
@pytest.mark.parametrize("state", ["confirmed", "sealed", "open"])
def test_what_is_missing_ends_the_run_or_is_left_out(copy: Copy, state: str, which: str, how: str) -> None:
    record = copy.record(which)
    number = int(record.name)
    if state != "confirmed":
        for path in copy.place.glob("confirmed-*"):
            path.unlink()
    if state == "open":
        copy.record("END").unlink()
    if record.exists():
        damage(record, how)
    intact = copy.without(number)
    if not record.exists() and (state, which) in {("open", "last"), ("open", "END"), ("sealed", "END")}:
        # It cannot be told from a part that is not complete.
        assert bodies(copy.part, copy.options) == intact
        return
    count = len(copy.segments[number]) if which != "END" else 0
    is_exact = state == "confirmed" or which in {"first", "middle"} or (state, which) == ("sealed", "last")
    expected = f"{count} of" if is_exact else f"up to {count} of"
    found = "is gone" if how == "delete" else "is damaged"
    stage = re.escape(copy.options.staging_location)
    pattern = rf"{stage}: batch 1: \S+/{record.name} {found}; {expected} its messages are lost\. .*false"
    for _ in range(2):
        with pytest.raises(DataLost, match=pattern):
            bodies(copy.part, copy.options)
    going_on = replace(copy.options, fail_on_data_loss=False)
    for _ in range(2):
        assert bodies(copy.part, going_on) == intact


def test_all_that_is_missing_is_named_at_once(copy: Copy) -> None:
    damage(copy.place / "000000", "delete")
    damage(copy.place / "000001", "cut")
    count = sum(map(len, copy.segments[:2]))
    with pytest.raises(DataLost, match=rf"000000 is gone, \S+000001 is damaged; {count} of its messages"):
        bodies(copy.part, copy.options)
    assert bodies(copy.part, replace(copy.options, fail_on_data_loss=False)) == copy.without(0, 1)


def test_a_confirmation_that_is_damaged_costs_nothing(copy: Copy) -> None:
    [confirmation] = copy.place.glob("confirmed-*")
    damage(confirmation, "flip")
    assert bodies(copy.part, copy.options) == copy.without()


def test_a_finished_batch_is_not_said_to_be_lost(copy: Copy) -> None:
    """An attempt that comes late may find a part that is about to be removed."""
    copy.record("first").unlink()
    (copy.place.parents[2] / "committed" / f"{copy.part.batch:012d}").write_bytes(b"")
    with pytest.raises(Fenced):
        bodies(copy.part, copy.options)


@pytest.mark.parametrize("how", ["delete", "flip"])
def test_a_run_that_was_killed_does_not_go_on_without_what_it_had_staged(
    nsqd: Running, tmp_path: Path, how: str
) -> None:
    topic = f"killed-{how}"
    publish(nsqd, topic, range(1000))
    options = source_options([nsqd], tmp_path, topic, wait_in_flight="false", **PATIENT)
    assert run_killed(tmp_path, options, "after-FIN:3") == -9
    first, *others = sorted(path for path in (tmp_path / "stage").rglob("*") if re.fullmatch(r"\d{6}", path.name))
    count, *counts = [decode_segment(read(path).content).num_rows for path in (first, *others)]
    assert len(counts) == 2
    damage(first, how)
    with pytest.raises(DataLost, match=rf"000000 is \w+; {count} of its messages are lost"):
        Engine(tmp_path, options).run()
    # What nsqd still has comes in later batches: Spark may have written this one.
    going_on = Engine(tmp_path, {**options, "fail_on_data_loss": "false"})
    going_on.run(1)
    assert len(going_on.batch_rows(0)) == sum(counts)


def read(path: Path) -> Record:
    return decode_record(memoryview(path.read_bytes()), path.name)
