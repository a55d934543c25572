"""Requests while a server's workers are replaced: nothing is lost, and each request, its publish and its handler are
one trace, also where these are in different processes."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.support.daemons import Running, wait_for
from tests.support.spans import NotedSpan, noted_spans
from tests.support.web import Answers, Load, Server, wait_until_all_is_finished

#: Requests that are answered at least; ``GNSQ_LIKE_REQUESTS=10000`` for the full run.
REQUESTS = int(os.environ.get("GNSQ_LIKE_REQUESTS", "200"))
#: Reloads in each run.
RELOADS = max(2, REQUESTS // 1000)
#: Clients that send requests at once. They do so while new workers start, which is slow beside many.
CLIENTS = 20 if REQUESTS >= 1000 else 4
#: The workers of each server.
WORKERS = 2
#: Seconds for a reload, and for the end; the machine may do other things.
PATIENCE = 300.0


@dataclass
class Reloads:
    """A server whose workers publish to the topic ``orders``, and consume it.

    :param started: what a worker logs when it is at work
    :param ended: what it logs when it has ended
    """

    server: Server
    nsqd: Running
    started: str
    ended: str

    def run(self) -> Answers:
        """Send requests, and meanwhile replace all workers, one round after the other."""
        load = Load(CLIENTS, self.server.port, "orders")
        try:
            for number in range(RELOADS):
                share = REQUESTS * (number + 1) // (RELOADS + 1)
                wait_for(lambda: len(load.answers.ok) >= share, "requests", PATIENCE)  # noqa: B023
                self.server.process.send_signal(signal.SIGHUP)
                self._wait_until_reloaded(number + 1)
            wait_for(lambda: len(load.answers.ok) >= REQUESTS, "requests", PATIENCE)
        finally:
            answers = load.stop()
        # Readers that fell behind have much to do.
        wait_until_all_is_finished(self.nsqd, "orders", PATIENCE)
        return answers

    def _wait_until_reloaded(self, times: int) -> None:
        def is_reloaded() -> bool:
            log = self.server.log
            return log.count(self.started) >= WORKERS * (times + 1) and log.count(self.ended) >= WORKERS * times

        wait_for(is_reloaded, "the new workers", PATIENCE)

    def check(self, answers: Answers) -> str:
        """Each request that was answered was handled, in its trace. Returns the figures, in a line."""
        spans = noted_spans(self.server)
        requests = {span.subject: span for span in spans if span.name == "request"}
        children: defaultdict[int | None, list[NotedSpan]] = defaultdict(list)
        for span in spans:
            children[span.parent].append(span)
        handled = Counter(self.server.noted("booked"))
        assert len(answers.ok) == len(set(answers.ok)) >= REQUESTS
        assert set(requests) == set(answers.ok)
        assert set(handled) == set(answers.ok)
        elsewhere = 0
        for name, request in requests.items():
            [send] = [each for each in children[request.span] if each.name == "send orders"]
            handling = [each for each in children[send.span] if each.name == "process orders"]
            assert [each.subject for each in handling] == [name] * handled[str(name)]
            assert {each.trace for each in [send, *handling]} == {request.trace}
            elsewhere += handling[0].pid != request.pid
        return json.dumps(
            {
                "requests": len(answers.ok),
                "reloads": RELOADS,
                "workers": len({span.pid for span in spans}),
                "handled": handled.total(),
                "handled in another process": elsewhere,
                "connections closed before the request": len(answers.broken),
            }
        )
