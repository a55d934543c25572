"""Files that no table has are removed once they are old, and no others; small files on an object store."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.tables.data_file import (
    UNTRACKED_AGE,
    DataFile,
    clean,
    directories,
    is_data_file,
    list_names,
    new_path,
    read_text,
    write_text,
)
from tests.support.s3 import serving_s3

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def make(table: Path, path: str, age: timedelta) -> str:
    file = table / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    written = (NOW - age).timestamp()
    os.utime(file, (written, written))
    return path


def test_only_old_files_of_ours_that_nobody_tracks_are_removed(tmp_path: Path) -> None:
    at, hour = datetime(2026, 11, 21, 13, 59, tzinfo=UTC), timedelta(hours=1)
    orphan, other = (make(tmp_path, new_path(at), UNTRACKED_AGE + hour) for _ in range(2))
    young = make(tmp_path, new_path(at), UNTRACKED_AGE - hour)
    foreign = make(tmp_path, "date=2026-11-21/hour=13/batch=0-000001/part-0.parquet", UNTRACKED_AGE + hour)
    tracked: list[str] = []

    def known() -> set[str]:
        # What is committed while the files are listed counts.
        tracked.append(other)
        return set(tracked)

    assert clean(f"file://{tmp_path}", is_data_file, known, NOW) == [orphan]
    assert [(tmp_path / each).exists() for each in (orphan, other, young, foreign)] == [False, True, True, True]
    assert clean(f"file://{tmp_path}/none", is_data_file, known, NOW) == []


def test_the_name_of_a_file_has_its_hour_in_utc() -> None:
    path = new_path(datetime.fromisoformat("2026-11-22T00:30:00+01:00"))
    assert path.startswith("date=2026-11-21/hour=23/part-") and is_data_file(path)
    assert DataFile(path, 1, 1).partition == {"date": "2026-11-21", "hour": "23"}
    assert not is_data_file(path + "x") and not is_data_file("x" + path)


@pytest.mark.parametrize("turn", [1, 2])  # the second one's store is as empty as the first one's
def test_small_files_on_an_object_store_keep_their_names(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    with serving_s3() as s3:
        for name, value in s3.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        assert list_names("s3a://bucket/c/tables") == []
        for name in ("file%3A%2F%2F%2Fa", ".hidden", "b"):
            write_text(f"s3a://bucket/c/tables/{name}", "some text")
        assert sorted(list_names("s3a://bucket/c/tables")) == ["b", "file%3A%2F%2F%2Fa"]
        assert read_text("s3a://bucket/c/tables/file%3A%2F%2F%2Fa") == "some text"
        assert directories("s3a://bucket/c") == ["tables"]
