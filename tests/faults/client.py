"""A client of a run, as a process: ``python -m tests.faults.client SPEC``, with a ``Spec`` as JSON.

It publishes and reads until its stdin says otherwise: "fork" forks a child that publishes with the inherited
Producer, "quiet" ends the publishing (and is answered when it has ended), "stop" or the end of stdin everything.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spec:
    """What a client does."""

    name: str
    seed: str
    #: "hub", "threads" or "patched".
    way: str
    #: The first of its messages' numbers.
    first: int
    notes: str
    lookupds: list[str]
    #: Empty for discovery alone.
    nsqds: list[str]
    #: Publishes in a second, and greenlets or threads that make them.
    rate: float
    publishers: int
    producer: dict[str, Any]
    reader: dict[str, Any]
    #: Most messages that a handler gets at a time; 1 for single ones.
    batch: int
    #: Seconds of the longest handlers: beyond nsqd's timeout.
    hang: float

    def dumps(self) -> str:
        return json.dumps(asdict(self))


if __name__ == "__main__":
    spec = Spec(**json.loads(sys.argv[1]))
    if spec.way == "patched":
        from gevent import monkey

        monkey.patch_all()
    from tests.faults.client_run import Client

    Client(spec).run()
