"""What a run notes about itself at its beginning and its end, for the time between runs: ``<metrics>/_last_run.json``.

The table of metrics only has batches: it does not say that a run found nothing, or why it failed. Readers of tables
skip names that begin with "_". Only where a path is a path: elsewhere, a run may have no credentials but Spark's, and
would wait for an answer before it begins.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnsq_like.durable_file import replace_file
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import PipelineFailed

logger = logging.getLogger(__name__)

#: Of a status (``RunStatus.current``).
_NOTED = ("state", "started_at", "updated_at", "batches", "messages", "rejected", "filtered", "lag", "depth")


def _path(pipeline: Pipeline) -> Path | None:
    place = pipeline.place("metrics")
    return Path(place.removeprefix("file://"), "_last_run.json") if place.startswith("file://") else None


def note_run(pipeline: Pipeline, status: Mapping[str, Any]) -> None:
    """Note the status of a run that begins or ends. If that is impossible, the run goes on, and the log says why."""
    path = _path(pipeline)
    if path is None:
        return
    noted = {name: status[name] for name in _NOTED}
    noted["failure"] = next((each["text"] for each in status["problems"] if each["name"] == "failed"), "")
    noted |= {"host": socket.gethostname(), "pid": os.getpid()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(noted).encode())
    except OSError as exc:
        logger.info("the state of the run cannot be noted in %s: %s", path, exc.strerror or exc)


def last_run(pipeline: Pipeline) -> dict[str, Any] | None:
    """What the last run noted; None if nothing is known of it.

    Its "state" is "ended" or "failed"; or "running", if it has begun and not ended; or "killed", if its process was one
    of this machine and is gone.

    :raises PipelineFailed: it cannot be read
    """
    path = _path(pipeline)
    if path is None:
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise PipelineFailed(f"{path} cannot be read: {exc}") from exc
    if found["state"] not in ("ended", "failed"):
        found["state"] = "killed" if _is_gone(found["host"], found["pid"]) else "running"
    return found


def _is_gone(host: str, pid: int) -> bool:
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is somebody else's
    return False
