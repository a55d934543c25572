"""Notes of what processes under test do, for the tests that count them; and work that ends when a test wants.

The processes append to one file, which the environment names in NOTES: a line for each note, in one write.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.files import whole_lines


class Note(NamedTuple):
    """One line."""

    what: str
    pid: str
    name: str


def read_notes(path: Path) -> list[Note]:
    """All notes so far, in their order."""
    return [Note(*line.split(maxsplit=2)) for line in whole_lines(path)]


def open_gate(path: Path) -> None:
    """Let all work end that waits for the gate, now and later.

    :param path: the file with the notes
    """
    _gate(path).touch()


#: The attribute by which tests know the spans of a request, and of its handler.
SUBJECT = "subject"


# -- in the process under test ---------------------------------------------------------------------------


def note(what: str, name: object) -> None:
    """Append a note."""
    os.write(_notes(), f"{what} {os.getpid()} {name}\n".encode())


def run(name: str) -> None:
    """Note that a job begins, work as its name says, and note that it is done; "fail" in the name fails."""
    note("began", name)
    work(name)
    if "fail" in name:
        raise ValueError(name)
    note("done", name)


def work(name: str) -> None:
    """Work for the seconds that the name begins with, "0.5-something"; or, "gate-something", until the gate is open."""
    until = name.partition("-")[0]
    if until != "gate":
        time.sleep(float(until))
        return
    while not _gate(Path(os.environ["NOTES"])).exists():
        time.sleep(0.01)


def note_spans() -> None:
    """Make a note of each span of OpenTelemetry that ends in this process; ``spans.noted_spans`` reads them."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Notes(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            for span in spans:
                parent = span.parent and span.parent.span_id
                subject = (span.attributes or {}).get(SUBJECT)
                note("span", json.dumps([span.name, span.context.trace_id, span.context.span_id, parent, subject]))
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Notes()))
    trace.set_tracer_provider(provider)


@cache
def _notes() -> int:
    return os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _gate(path: Path) -> Path:
    return path.with_name("gate-is-open")
