"""Offsets: what Spark writes into its log for each batch, and hands back after a restart.

NSQ has no offsets. Ours say which batch of which log of staged messages comes next, and hold that batch's plan:
how many messages to take from which nsqd. So Spark's own offset log is the plan's durable place, and the same
batch asked for again is the same partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_like.spark.staging.errors import StagingError

#: The version of this format.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Share:
    """What one batch takes from one nsqd."""

    messages: int
    #: Tasks that share it.
    splits: int = 1
    #: Bytes of bodies at which it is enough; 0 for no such limit.
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch."""

    log: str
    #: Counts the log's batches from 1; 0 is before the first.
    batch: int
    #: For each nsqd's address, what this batch takes from it.
    plan: Mapping[str, Share] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For Spark, which keeps it as JSON."""
        plan = {
            address: {"messages": share.messages, "splits": share.splits, "bytes": share.bytes}
            for address, share in self.plan.items()
        }
        return {"v": VERSION, "log": self.log, "batch": self.batch, "plan": plan}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Offset:
        """From what Spark hands back; raises StagingError for what is not an offset of this source."""
        try:
            if value["v"] != VERSION:
                raise StagingError(f"the checkpoint was written by another version of gnsq_like: {dict(value)}")
            plan = {
                str(address): Share(int(each["messages"]), int(each["splits"]), int(each["bytes"]))
                for address, each in value["plan"].items()
            }
            return cls(str(value["log"]), int(value["batch"]), plan)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise StagingError(f"the checkpoint holds no offset of the source nsq: {value!r}") from exc
