"""The cause of a run's end, as a sentence: from texts as Spark produces them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline.faults import failure, sentence

WORKER = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function. SQLSTATE: 39000
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
gnsq_like.spark.staging.store.StagingError: staging_location /stage is not what it is for the driver.
\tat org.apache.spark.Scheduler.run(ConcurrentScheduler.java:1)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[PYTHON] Failed: gnsq_like.spark.user_errors.NotInstalled: python lacks gevent.\n", "python lacks gevent"),
        (WORKER, "staging_location /stage is not what it is for the driver"),
        (
            "x\njava.io.IOException: No space left on device\n\tat y",
            "a disk is full: make room where the pipeline writes",
        ),
        ("java.nio.file.AccessDeniedException\nPermission denied: '/out'", "permission denied '/out': the pipeline"),
        ("java.io.IOException: Mkdirs failed to create file:/out/data/x (exists=false", "permission denied file:/out/"),
        ('No FileSystem for scheme "s3a"', "Spark has no file system for s3a://"),
        (
            "java.util.ConcurrentModificationException: Multiple streaming queries are concurrently using /c",
            "another run",
        ),
        ("Query [id = 9, runId = 9] terminated with exception:  SQLSTATE: XXKST (no cause message)", "a Python that"),
        ("[STREAM_FAILED] terminated with exception: Connection reset SQLSTATE: XXKST", "a Python that Spark started"),
        ("SparkException: Python worker exited unexpectedly (crashed)", "a Python that Spark started was killed"),
        ("java.lang.OutOfMemoryError: Java heap space", "Java has too little memory"),
        ("Traceback (most recent call last):\n  File\nValueError: five is no number\n", "five is no number"),
        ("An error occurred while calling o45.start.\n: java.io.IOException: /x is a file\n\tat a.b.c", "/x is a file"),
        ("[SOMETHING] happened\n\tat x", "[SOMETHING] happened"),
    ],
)
def test_the_cause_is_found(text: str, said: str) -> None:
    found = sentence(RuntimeError(text), "/out")
    assert found.startswith(said)
    assert "\n" not in found and "  " not in found


def test_our_own_error_says_it_itself_and_nothing_is_lost() -> None:
    found = str(failure(InvalidOption("a", 1, "it is wrong."), "/out"))
    assert found.startswith("invalid option a=1: it is wrong. Nothing is lost:")


def test_the_cause_of_a_cause_is_seen() -> None:
    try:
        try:
            raise OSError("No space left on device")
        except OSError as exc:
            raise RuntimeError("writing failed") from exc
    except RuntimeError as exc:
        assert sentence(exc, "/out").startswith("a disk is full")


def test_a_java_that_ended_is_named() -> None:
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as exc:
            raise RuntimeError("An error occurred while calling o45.isActive") from exc
    except RuntimeError as exc:
        assert sentence(exc, "/out").startswith("Spark's Java ended in the middle of the run")


def test_a_java_that_does_not_answer_a_call_has_ended() -> None:
    Py4JError = pytest.importorskip("py4j.protocol").Py4JError
    assert sentence(Py4JError("An error occurred while calling o215.isActive"), "/out").startswith("Spark's Java ended")
    answered = "An error occurred while calling o215.fly. Trace:\npy4j.Py4JException: Method fly([]) does not exist\n"
    assert "Java ended" not in sentence(Py4JError(answered), "/out")


def test_an_error_without_a_text() -> None:
    assert sentence(RuntimeError(), "/out") == "RuntimeError()"


def test_a_full_disk_is_the_cause_and_not_what_came_while_it_was_handled() -> None:
    text = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "parquet_files.py", line 1, in write_file
OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "parquet_files.py", line 2, in write_file
RuntimeError: file metadata is only available after writer close
"""
    assert sentence(RuntimeError(text), "/out").startswith("a disk is full: make room where the pipeline writes (/out)")
    quota = text.replace("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device", "gone")
    assert sentence(RuntimeError(quota), "/out") == "gone"
