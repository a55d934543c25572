"""What sparse messages cost a Reader, in counts: the commonest traffic is a few messages a second."""

from __future__ import annotations

from functools import partial
from typing import Any

import gevent
import pytest

from gnsq_like import Message
from tests.simulation import Cluster, simulated


@pytest.mark.parametrize("options", [{}, {"deflate": True}, {"max_in_flight": 2}], ids=str)
@simulated(shuffle=False)
def test_a_message_that_is_answered_without_blocking_costs_a_read_and_a_write(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    """A hundred of them; the other six writes are the RDY commands of three trials of a larger burst."""
    received: list[bytes] = []

    def handler(message: Message) -> None:
        received.append(message.body)

    cluster.reader("clicks", "archive", handler, **{"max_in_flight": 50, **options})
    gevent.sleep(1)
    publisher = cluster.world.process("publisher")
    counts = cluster.world.main.counts
    before = counts.copy()
    for number in range(100):
        publisher.run(partial(cluster.publish, "clicks", b"%d" % number))
        gevent.sleep(0.05)
    cost = counts.since(before)
    assert len(received) == 100
    assert cost["reads"] <= 110
    assert cost["writes"] <= 116
    # The read, the worker, and RDY and FINs: three; this test's own sleeps; and three looks for each trial.
    assert cost["callbacks"] <= 450
