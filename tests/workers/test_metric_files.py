"""Metrics of several processes, while one of them creates its file."""

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from gnsq_like.workers.metric_files import WorkerFiles


def write(path: Path, value: float) -> None:
    """The file of a process that has counted so many."""
    values = MmapedDict(str(path))
    values.write_value(mmap_key("seen", "seen_total", [], [], "What was seen."), value, 0.0)
    values.close()


def test_a_file_that_is_just_being_created_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "counter_1.db", 2.0)
    write(tmp_path / "counter_2.db", 3.0)
    (tmp_path / "counter_3.db").touch()
    registry = CollectorRegistry()
    WorkerFiles(registry, str(tmp_path))
    assert b"seen_total 5.0\n" in generate_latest(registry)
    write(tmp_path / "counter_3.db", 4.0)
    assert b"seen_total 9.0\n" in generate_latest(registry)
