"""The cause of a run's end, as a sentence.

Spark raises a Java exception with a Python traceback in its text, or the other way round, several levels deep. One line
of it is the cause: a sentence of ours, raised in a worker or by the source, or one of a few known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gnsq_like.errors import NSQError


class PipelineFailed(NSQError):
    """The run ended; the text says why. Messages that were not written are still in nsqd or in the stage."""


class NotBegun(NSQError):
    """The run could not begin; the text says why. Nothing was taken from nsqd."""


#: Patterns in the text of an error, and their meaning. The first one that is found counts.
_KNOWN = (
    (r"No space left on device: '(?P<what>/[^']+)'", "the disk of {what} is full: make room there"),
    (r"No space left on device", "a disk is full: make room where the pipeline writes ({places}), or where Spark keeps "
     "temporary files (spark.local.dir)"),
    (r"File too large(: '(?P<what>/[^']+)')?", "a file is larger than the system allows {what}, where the pipeline "
     "writes ({places})"),
    (r"Disk quota exceeded(: '(?P<what>/[^']+)')?", "a disk quota is used up {what}, where the pipeline writes "
     "({places})"),
    (r"AccessControlException|Permission denied(: ?(?P<what>\S+))?|Mkdirs failed to create (?P<made>\S+)",
     "permission denied {what}{made}: the pipeline must be allowed to write to {places}"),
    (r"Read-only file system", "a file system is read-only where the pipeline writes ({places})"),
    (r"No FileSystem for scheme \"?(?P<what>\w+)", "Spark has no file system for {what}://: add its package, as with "
     "--packages, to Spark"),
    (r"OutOfMemoryError", "Java has too little memory: give it more (spark.driver.memory, spark.executor.memory), or "
     "set source.max_messages so that batches are smaller"),
    (r"stopped SparkContext", "its master does not answer or refuses it; --spark-log ERROR shows more"),
    # The source's own process, when it is gone, has no more to say.
    (r"Python worker exited unexpectedly|terminated with exception: *(Connection reset *)?SQLSTATE",
     "a Python that Spark started was killed, perhaps because the machine has too little memory for it"),
    (r"Python worker failed to connect back", "a Python that Spark started did not answer within 10 s: the machine is "
     "too busy, or PYSPARK_PYTHON cannot run it"),
    (r"JAVA_GATEWAY_EXITED", "its Java ended at once; its output is above"),
    (r"ConcurrentModificationException|concurrently using|CONCURRENT_QUERY|CONCURRENT_STREAM",
     "another run uses the same checkpoint: two runs cannot share one"),
)  # fmt: skip

#: One of our own errors, at the end of a Python traceback or of a sentence of Spark's.
_OURS = re.compile(r"\bgnsq_like(?:\.\w+)+: (?P<text>.+?)\s*$", re.MULTILINE)
#: Any error at the end of a Python traceback, or a Java exception's own line.
_PYTHON = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): (?P<text>.+)$", re.MULTILINE)

#: The class name in front of a Java exception's text, and lines that say nothing.
_JAVA = re.compile(r"^(?:: )?(?:[a-z]\w*\.)+[A-Z][\w$]*: ")
_MEANWHILE = "During handling of the above exception, another exception occurred"
_NOISE = re.compile(r"An error occurred while calling |\s+at ")

_KEPT = "Nothing is lost: messages that were not written come again when the pipeline is started again."


def failure(exc: BaseException, places: str) -> PipelineFailed:
    """Make the error that names the cause in a sentence, and says that nothing is lost."""
    return PipelineFailed(f"{sentence(exc, places)}. {_KEPT}")


def sentence(exc: BaseException, places: str) -> str:
    """The cause of an error that Spark raised, or our own error's text.

    :param places: where the pipeline writes, for the sentences that say so
    """
    if isinstance(exc, NSQError) and "No space left on device" not in str(exc):  # deltalake's text, in one of ours
        return str(exc).rstrip(".")
    if any(map(_has_no_java, _chain(exc))):
        return (
            "Spark's Java ended in the middle of the run: it was killed, perhaps because the machine has too little "
            "memory for it (spark.driver.memory)"
        )
    text = "\n".join(map(str, _chain(exc)))
    for pattern, meaning in _KNOWN:
        found = re.search(pattern, text)
        if found:
            groups = {name: value or "" for name, value in found.groupdict().items()}
            words = meaning.format_map({"places": places, "what": "", "made": "", **groups})
            return re.sub(r"\s+([:,])", r"\1", words)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).rstrip(".")
    # An error that was raised while another one was handled, as when a file on a full disk is closed, is not the cause.
    python = _PYTHON.findall(text.partition(_MEANWHILE)[0])
    if python:
        return str(python[-1]).rstrip(".")
    lines = [_JAVA.sub("", line).strip() for line in text.splitlines() if not _NOISE.match(line)]
    return next(filter(None, lines), repr(exc)).rstrip(".")


def _has_no_java(exc: BaseException) -> bool:
    """Whether an error means that Java is gone. Errors from a live Java have other classes, or a Java trace."""
    name = type(exc).__name__
    lost = name == "Py4JError" and str(exc).startswith("An error occurred while calling") and "\n" not in str(exc)
    return lost or name == "Py4JNetworkError" or isinstance(exc, ConnectionError)


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """An error and its causes."""
    seen = set()
    current: BaseException | None = exc
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def spark_errors() -> tuple[type[Exception], ...]:
    """The errors that Spark raises: from Java, from Python, and when Java is gone."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException, ConnectionRefusedError
