"""A pipeline at scale, by hand: killed at many moments, beside compaction and a reader, with figures in the end.

``python -m tests.spark.pipeline.trial DIRECTORY [--messages N] [--kills N] [--format FORMAT] [--by-topic] [--more X]``

Several topics of two nsqds, which have the same node id, so the ids of their messages are alike. It ends with an error
if a message is lost or doubled, or a reader saw a part of a batch.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

from tests.spark.pipeline.beside import Beside
from tests.spark.pipeline.killing import Moment, Victim, check, fill, kill_one, read, run_to_its_end, write_config
from tests.support.daemons import running_nsqd

TOPICS = ("clicks", "clicks.mobile", "views")
#: More batches than the kills take.
_BATCHES = 40

#: All processes as often as the others together: it is what happens to a machine.
_KILLS = (
    (Victim.ALL, Moment.ANY),
    (Victim.DRIVER, Moment.WRITTEN),
    (Victim.ALL, Moment.WRITTEN),
    (Victim.WORKERS, Moment.ANY),
    (Victim.ALL, Moment.WRITTEN),
    (Victim.JAVA, Moment.ANY),
    (Victim.ALL, Moment.ANY),
    (Victim.WORKERS, Moment.WRITTEN),
    (Victim.DRIVER, Moment.ANY),
    (Victim.JAVA, Moment.WRITTEN),
)


def main() -> None:
    """Fill the nsqds, kill runs, and print figures."""
    parser = argparse.ArgumentParser(description="Kill a pipeline again and again, and count its rows.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--format", default="parquet", choices=["parquet", "delta", "iceberg"])
    parser.add_argument("--by-topic", action="store_true", help="a table for each topic")
    parser.add_argument("--more", default="", help="TOML for the configuration, such as [transform]")
    parser.add_argument("--nsqd", default="real", choices=["real", "process"])
    given = parser.parse_args()
    given.directory.mkdir(parents=True)
    with (
        running_nsqd(given.nsqd, node_id=7) as one,
        running_nsqd(given.nsqd, node_id=7) as other,
    ):
        nsqds = [one, other]
        fill(nsqds, given.messages, TOPICS)
        most = max(1000, given.messages // _BATCHES)
        config = write_config(
            nsqds, given.directory, most, given.format, TOPICS, by_topic=given.by_topic, more=given.more
        )
        began = time.monotonic()
        with Beside(config, given.format) as beside:
            for line in _runs(config, given.kills):
                print(f"{time.monotonic() - began:6.0f} s: {line}", flush=True)
        print(f"{beside.reads} reads, maintained: {dict(beside.maintained)}")
        print(f"errors: {beside.errors}", flush=True)
        outcome = read(nsqds, given.directory, given.format)
        print(f"table {outcome.data.total()}, different {len(outcome.data)}, identities {outcome.identities}")
        print(f"rejected {outcome.rejected.total()}, dead letters {outcome.letters}, metrics {outcome.messages}")
        print(f"batches {len({batch for batch, *_ in outcome.keys})}", flush=True)
        check(outcome, given.messages)
        assert not beside.errors
        print("every message is there once")


def _runs(config: Path, kills: int) -> Iterator[str]:
    rng = random.Random()
    for victim, moment in itertools.islice(itertools.cycle(_KILLS), kills):
        yield f"{moment.value}: {kill_one(config, rng, victim, moment)}"
    yield run_to_its_end(config)


if __name__ == "__main__":
    main()
