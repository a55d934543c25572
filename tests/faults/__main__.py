"""A run of the campaign from the command line: ``python -m tests.faults --minutes 30 --seed 7 --nsq real``."""

from __future__ import annotations

import argparse
import random
import signal
import sys

import gevent

from tests.faults.campaign import Campaign
from tests.faults.report import as_text, problems


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Random faults, and what comes of them."
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats a run's faults")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long there are faults (default: 5)")
    parser.add_argument("--nsq", choices=["ours", "real"], default="ours", help="real: the daemons on PATH")
    given = parser.parse_args()
    campaign = Campaign(given.seed, 60 * given.minutes, given.nsq)
    main_greenlet = gevent.getcurrent()

    def end() -> None:
        """The first time the faults; then everything, and the daemons, too."""
        if not campaign.hurry():
            main_greenlet.throw(SystemExit(1))

    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, end)
    print(f"seed {given.seed}", flush=True)
    result = campaign.run()
    print(as_text(result))
    return 1 if problems(result) else 0


if __name__ == "__main__":
    sys.exit(main())
