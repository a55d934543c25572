"""Offsets: the value that Spark writes into its log for each batch, and hands back after a restart.

NSQ has no offsets. Ours name the batch of a log of staged messages that comes next, and hold the plan of that batch:
how many messages to take from which nsqd. So the plan is durable in Spark's own offset log, and asking for the same
batch again gives the same parts.

Each topic and channel has a log of its own. A query writes the offsets of all logs that it has ever begun; a batch goes
on with those that have messages, and the others stay as they were. So topics can be added to a query, and left out for
a while. (Version 1 was the offset of a single log, without its topic.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from gnsq_like.spark.staging.store import StagingError

#: The version of the format.
VERSION = 2
#: The errors of a value that this source did not write.
NOT_WRITTEN = (KeyError, TypeError, ValueError, AttributeError)


class TopicChannel(NamedTuple):
    """A topic, and the channel of it that is read."""

    topic: str
    channel: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.channel}"

    @classmethod
    def parse(cls, text: str) -> TopicChannel:
        """The opposite of str(): names of topics and channels have no "/"."""
        topic, _, channel = text.partition("/")
        return cls(topic, channel)


#: For parts in the stage, which is one topic's anyway.
_NONE = TopicChannel("", "")


@dataclass(frozen=True, slots=True)
class Share:
    """The messages that a batch takes from one nsqd."""

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
        """For JSON."""
        return {"log": self.log, "batch": self.batch, "plan": {of: asdict(share) for of, share in self.plan.items()}}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Offset:
        """From such a value; raises an error of NOT_WRITTEN if this source did not write it."""
        plan = {str(address): Share(**each) for address, each in value["plan"].items()}
        return cls(str(value["log"]), int(value["batch"]), plan)

    def parts(self, of: TopicChannel = _NONE) -> list[Part]:
        """The batch's parts; always the same for the same plan.

        :param of: the topic and channel; the stage alone needs none
        """
        return [
            Part(self.log, self.batch, address, split, messages, -(-share.bytes // share.splits), of)
            for address, share in self.plan.items()
            for split, messages in enumerate(_divided(share.messages, share.splits))
        ]


@dataclass(frozen=True, slots=True)
class Part:
    """The messages that one task takes: a split of an nsqd's share of a batch."""

    log: str
    batch: int
    address: str
    split: int
    messages: int
    #: Bytes of bodies after which it takes no more; 0 for no such limit.
    bytes: int = 0
    #: The topic and the channel.
    of: TopicChannel = _NONE
    #: When its batch was planned, in microseconds since the epoch; 0 if that is not known.
    seen_us: int = 0
    #: The URL of the nsqd's HTTP API; "" if it is not known.
    http: str = ""
    #: Whether an earlier batch of this run has got messages, so that the connections' options were right then.
    connected_before: bool = False


@dataclass(frozen=True, slots=True)
class Offsets:
    """The end of a batch of a query: the offset of each log."""

    logs: Mapping[TopicChannel, Offset] = field(default_factory=dict)
    #: When the batch was planned, in microseconds since the epoch: the ``seen_at`` of its rows, whenever these are
    #: read. 0 if it is not known, and before the first batch.
    at_us: int = 0

    def after(self, ends: Mapping[TopicChannel, Offset], at_us: int) -> Offsets:
        """The end of the batch that consists of these batches of logs. Plans of earlier ones are left out."""
        return Offsets({of: replace(each, plan={}) for of, each in self.logs.items()} | dict(ends), at_us)

    def to_dict(self) -> dict[str, Any]:
        """For Spark, which keeps it as JSON."""
        return {"v": VERSION, "logs": {str(of): each.to_dict() for of, each in self.logs.items()}, "at": self.at_us}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], named: Sequence[TopicChannel] = ()) -> Offsets:
        """From the value that Spark hands back.

        :param named: the topics that the query names; an offset of version 1 is that of a query of one topic
        :raises StagingError: this source did not write it
        """
        logs: Any = value.get("logs")
        if value.get("v") == 1:
            if len(named) != 1:
                raise StagingError("the checkpoint is an older one, of one topic: run it once more with that one alone")
            logs = {str(named[0]): value}
        elif value.get("v") != VERSION:
            logs = None
        try:
            found = {TopicChannel.parse(of): Offset.from_dict(each) for of, each in logs.items()}
        except NOT_WRITTEN as exc:
            said = f"the checkpoint holds no offset of the source nsq that this version reads: {value!r}"
            raise StagingError(said) from exc
        return cls(found, value.get("at", 0))


def _divided(amount: int, count: int) -> list[int]:
    return [amount // count + (index < amount % count) for index in range(count)]
