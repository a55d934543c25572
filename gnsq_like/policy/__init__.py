"""Flow control as arithmetic: numbers in, a decision out.

Nothing in this room does I/O, reads a clock, draws a random number or logs: `now` (monotonic seconds) and random
numbers are parameters, so every rule is tested in virtual time.

- `places`: how many messages each connection may hold; the theory on one page
- `line`: one connection as that sees it; its `charge` is what it may cost, its `level` the RDY that is sent
- `rate_limit`: less of it, for so many messages a second
- `backoff`: the Reader's reaction to failing handlers
- `delays`: all other waiting times: requeue, redial, discovery
"""
