"""Flow control as arithmetic: numbers in, a decision out.

Nothing in this room does I/O, reads a clock, draws a random number or logs: `now` (monotonic seconds)
and random numbers are parameters, so that every rule can be tested in virtual time. It imports nothing
of ours but its own neighbours, and none of gevent, socket, ssl, time, random, logging.

- `rdy`: how many messages each connection may hold (`plan`, from what `charge` knows of each)
- `renewal`: RDY for ancient nsqds, which count it down
- `adaptive_rdy`: how much of that share to ask for just now, so that a trickle arrives at once
- `backoff`: the Reader's answer to failing handlers
- `delays`: every other waiting time: requeue, redial, discovery
"""
