"""Offsets: the value that Spark writes into its log for each batch, and hands back after a restart.

NSQ has no offsets. Ours name the batch of a log of staged messages that comes next, and hold the plan of that batch:
how many messages to take from which nsqd. So the plan is durable in Spark's own offset log, and asking for the same
batch again gives the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gnsq_like.spark.staging.errors import StagingError

#: The version of this format.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Share:
    """How much a batch takes from one nsqd."""

    messages: int
    #: The number of tasks that divide it among them.
    splits: int = 1
    #: Bytes of bodies after which it takes no more; 0 for no such limit.
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch."""

    log: str
    #: Counts the log's batches from 1; 0 is before the first.
    batch: int
    #: The shares of the batch, by the nsqds' addresses.
    plan: Mapping[str, Share] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For Spark, which keeps it as JSON."""
        plan = {address: asdict(share) for address, share in self.plan.items()}
        return {"v": VERSION, "log": self.log, "batch": self.batch, "plan": plan}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Offset:
        """From the value that Spark hands back; raises StagingError if this source did not write it."""
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

    def parts(self) -> list[Part]:
        """The batch's parts; always the same for the same plan."""
        return [
            Part(self.log, self.batch, address, split, messages, -(-share.bytes // share.splits))
            for address, share in self.plan.items()
            for split, messages in enumerate(_divided(share.messages, share.splits))
        ]


@dataclass(frozen=True, slots=True)
class Part:
    """How much one task takes: a split of an nsqd's share of a batch."""

    log: str
    batch: int
    address: str
    split: int
    messages: int
    #: Bytes of bodies after which it takes no more; 0 for no such limit.
    bytes: int = 0


def _divided(amount: int, count: int) -> list[int]:
    return [amount // count + (index < amount % count) for index in range(count)]
