"""The stores: each name has one winner, whose content is complete, and nothing is created below a retired name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.spark.staging.store import Fenced, PosixStore, StagingError, Store, check_store, open_store
from tests.support.s3 import serving_s3


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The options for an S3 that runs in this process."""
    with serving_s3() as environ:
        yield {"endpoint_url": environ["AWS_ENDPOINT_URL"], "key": "k", "secret": "s"}


@pytest.fixture(params=["posix", "file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "posix":
        return open_store(str(tmp_path / "stage"), {})
    if request.param == "file":
        return open_store(f"file://{tmp_path}/stage", {})
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}", {})
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    options = request.getfixturevalue("s3")
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(**options).mkdir(bucket)
    return open_store(f"s3://{bucket}/stage", options)


def test_a_name_is_created_once(store: Store) -> None:
    store.make("a/b")
    assert not store.exists("a/b/1")
    assert store.create("a/b/1", b"one")
    assert not store.create("a/b/1", memoryview(b"another"))
    assert bytes(store.read("a/b/1")) == b"one"
    assert store.exists("a/b/1")
    check_store(store, "here")


def test_names_are_listed_below_a_prefix(store: Store) -> None:
    for name in ("a/1", "a/b/2", "ab/3"):
        store.make(name.rpartition("/")[0])
        store.create(name, b"")
    assert store.list("a") == ["a/1", "a/b/2"]
    assert store.list("nothing") == []


def test_what_is_retired_is_gone(store: Store) -> None:
    store.make("a/b")
    store.make("c")
    store.create("a/b/1", b"one")
    store.create("c/1", b"kept")
    store.retire("a")
    store.retire("a")
    assert store.list("a") == []
    assert store.list("c") == ["c/1"]
    with pytest.raises(FileNotFoundError):
        store.read("a/b/1")
    store.retire("c/1")
    assert not store.exists("c/1")


def test_of_many_at_once_one_wins(store: Store) -> None:
    store.make("race")
    contents = [b"%d" % number * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for number in range(5):
            name = f"race/{number}"
            won = list(pool.map(lambda content, name=name: store.create(name, content), contents))
            assert won.count(True) == 1
            assert bytes(store.read(name)) == contents[won.index(True)]


def test_below_what_is_retired_nothing_can_be_created(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.make("batch/part")
    store.retire("batch")
    with pytest.raises(Fenced):
        store.create("batch/part/0", b"late")
    assert store.list("") == []


def test_partial_files_are_not_listed(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.make("a")
    (tmp_path / "a" / ".1.abc.tmp").write_bytes(b"half")
    assert store.list("a") == []


def test_what_cannot_be_listed_is_not_nothing(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    (tmp_path / "committed").write_text("no directory")
    with pytest.raises(NotADirectoryError):
        store.list("committed")


def test_what_an_object_store_made_without_its_answer_coming_through_is_known() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = open_store(f"memory://{uuid.uuid4().hex}", {})
    assert store.create("segment", b"mine")
    assert store.create("segment", b"mine")  # as a client that got no answer repeats it
    assert not store.create("segment", b"another's")


class Overwrites(PosixStore):
    """A file system whose exclusive creation overwrites, as pyarrow's does."""

    def create(self, name: str, data: bytes | memoryview) -> bool:
        (self._root / name).write_bytes(data)
        return True


def test_a_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StagingError, match="created twice"):
        check_store(Overwrites(tmp_path), "there")


def test_places_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match="absolute"):
        open_store("relative", {})
    with pytest.raises(StagingError, match="cannot be used"):
        check_store(open_store(str(tmp_path / "file"), {}), "there")
    with pytest.raises(StagingError, match=r"http://127.0.0.1:9/stage (cannot be used|needs fsspec)"):
        check_store(open_store("http://127.0.0.1:9/stage", {}), "http://127.0.0.1:9/stage")


def test_storage_options_are_read_as_json_where_they_look_so() -> None:
    from gnsq_like.spark.staging.store import _from_text

    values: dict[str, Any] = {"true": True, "false": False, '{"a": 1}': {"a": 1}, "12": "12", "secret": "secret"}
    assert {text: _from_text(text) for text in values} == values


def test_nothing_is_deleted_through_a_link(tmp_path: Path) -> None:
    """Somebody who may write into the stage, but not into the user's other directories."""
    store = PosixStore(tmp_path / "stage")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    store.make("a/b")
    (tmp_path / "stage" / ".trash").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="link"):
        store.retire("a")
    (tmp_path / "stage" / ".trash").unlink()
    (tmp_path / "stage" / ".trash").mkdir()
    (tmp_path / "stage" / ".trash" / "link").symlink_to(tmp_path / "precious")
    store.retire("a")
    assert list((tmp_path / "stage" / ".trash").iterdir()) == []
    assert (tmp_path / "precious" / "file").exists()
