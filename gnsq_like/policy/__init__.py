"""Flow control as arithmetic: numbers in, a decision out.

Nothing in this room does I/O, reads a clock, draws a random number or logs: `now` (monotonic seconds) and random
numbers are parameters, so every rule is tested in virtual time.

- `rdy`: how many messages each connection may hold (`plan`, from the `charge` of each)
- `level`: which RDY is sent of that share; for very old nsqds, which count it down, too
- `adaptive_rdy`: how much of that share to request right now, so that sparse messages arrive at once
- `backoff`: the Reader's reaction to failing handlers
- `delays`: all other waiting times: requeue, redial, discovery
"""
