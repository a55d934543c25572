"""The nsqds that have left a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gnsq_like.cluster.nodes import Node

#: Seconds for which one that left is kept.
KEPT = 24 * 3600.0
#: Seconds after which an nsqd that answers, and is not listed, is a problem. It registers again with a nsqlookupd that
#: was restarted at its next ping, of which there is one every 15 s.
REGISTERS_WITHIN = 30.0


class Departures:
    """Which nsqds have left: nsqlookupds listed them, and list them no more.

    An nsqd that crashes or is cut off disappears from every list, as one that was stopped on purpose does. It is kept
    in the overview, and polled, until it is listed again, is dismissed, or a day has passed; unless it was tombstoned,
    which is how an operator retires it. A nsqlookupd that does not answer, or was restarted and waits for its nsqds,
    makes no nsqd leave as long as the nsqd answers.

    Belongs to the core's thread, and never switches.
    """

    def __init__(self) -> None:
        #: All that were listed, by address, as they were last.
        self._listed: dict[str, Node] = {}
        #: Those that left, and when (epoch).
        self.left: dict[str, tuple[Node, float]] = {}
        #: Those with a tombstoned topic since they were first seen.
        self._tombstoned: set[str] = set()

    def state(self) -> dict[str, Any]:
        """The whole state for JSON; see :meth:`restore`."""
        return {
            "listed": [asdict(node) for node in self._listed.values()],
            "left": [[asdict(node), at] for node, at in self.left.values()],
            "tombstoned": sorted(self._tombstoned),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state`: what was listed then and is not now has left.

        :raises ValueError, TypeError, KeyError: it is not such a state
        """
        listed = {node.address: node for node in (Node(**each) for each in state["listed"])}
        left = {node.address: (node, float(at)) for node, at in ((Node(**each), at) for each, at in state["left"])}
        self._listed, self.left, self._tombstoned = listed, left, set(state["tombstoned"])

    def look(self, nodes: Iterable[Node], lookupds: Mapping[str, str], now: float) -> None:
        """Compare with the nodes that are listed now.

        :param lookupds: why each nsqlookupd did not answer; empty if it did
        """
        listed = {node.address: node for node in nodes}
        self._tombstoned |= {address for address, node in listed.items() if any(node.topics.values())}
        for address in listed.keys() & self.left.keys():
            del self.left[address]
        for address, node in self._listed.items():
            if address in listed:
                continue
            if not _is_missed(node, lookupds):
                listed[address] = node
            elif not (address in self._tombstoned and all(node.topics.values())):
                self.left[address] = (node, now)
        self._listed = listed
        self.left = {address: each for address, each in self.left.items() if now - each[1] < KEPT}
        self._tombstoned &= listed.keys()

    def tombstone(self, address: str) -> None:
        """Note that a topic of this nsqd is tombstoned, and lost at once."""
        self._tombstoned.add(address)

    def dismiss(self, address: str) -> bool:
        """Forget one that left.

        :returns: whether it had
        """
        return self.left.pop(address, None) is not None


def _is_missed(node: Node, lookupds: Mapping[str, str]) -> bool:
    """Whether a nsqlookupd that knew it answers now."""
    return any(not problem and name in node.lookupds for name, problem in lookupds.items())
