"""What a supervisor would run, without running it."""

from __future__ import annotations

import time
from typing import Any

from gnsq_like.tools.supervisor.plan import CannotLoad, Plan
from gnsq_like.tools.supervisor.process import WorkerProcess
from gnsq_like.tools.supervisor.roster import LOAD_TIMEOUT
from gnsq_like.tools.supervisor.shares import share

#: Seconds between two looks at the process.
_LOOK = 0.02


def inspect(plan: Plan) -> list[dict[str, Any]]:
    """Load the Readers in a worker, as a supervisor would, and describe them. Blocks.

    Each has: topic, channel, handler, batch, spawn, concurrency, max_in_flight, and shares: that of each process.

    :raises CannotLoad: when they cannot be loaded; the text is one line
    """
    worker = WorkerProcess(1, plan)
    deadline = time.monotonic() + LOAD_TIMEOUT
    try:
        while time.monotonic() < deadline:
            is_over = worker.status is not None
            for message in worker.read():
                if message["is"] == "loaded":
                    return [_with_shares(each, index, plan.processes) for index, each in enumerate(message["readers"])]
                if message["is"] == "failed":
                    raise CannotLoad(message["trace"].rstrip() or message["why"])
            if is_over:
                raise CannotLoad(worker.how_it_ended)
            time.sleep(_LOOK)
        raise CannotLoad(f"the readers were not loaded within {LOAD_TIMEOUT:g} s")
    finally:
        worker.kill()
        worker.wait()
        worker.close()


def _with_shares(reader: dict[str, Any], index: int, processes: int) -> dict[str, Any]:
    total = reader["max_in_flight"]
    return {**reader, "shares": [share(total, processes, slot + index) for slot in range(processes)]}
