"""The targets by name. Each takes any bytes, and raises only if something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzz.files import disk_queue, metadata
from tests.fuzz.http import answers, http_faces
from tests.fuzz.protocol import codecs, frames, negotiation, requests, session

TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (frames, session, requests, codecs, negotiation, answers, disk_queue, metadata, http_faces)
}
#: For each target a directory of inputs to begin with.
CORPUS = Path(__file__).parent / "corpus"
