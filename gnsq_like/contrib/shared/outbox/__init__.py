"""The transactional outbox: messages are rows of the transaction that they belong to, until a relay has published them.

A message is lost if a process ends, or every nsqd is unreachable, between the commit and the publish. So the message is
written into a table in the same transaction, and a relay publishes committed rows. It marks a row when nsqd has
confirmed it, so each row is published at least once, and rows of a rolled-back transaction never.

Rows get their ids before they commit, and commit in another order, so a relay that remembered the last id would miss
rows that commit late. The relay therefore selects unpublished rows, through an index of only these.

Order: rows with the same topic and key are numbered 1, 2, 3 by a counter row, whose lock is held until the commit. So
the numbers have no gaps, and rows of a key get their ids in the order of their commits. A key belongs to a shard, a
shard to one relay at a time, and a relay sends a shard's rows one command after the other, by id. NSQ itself keeps no
order; consumers get the number in the message (``contrib/shared/envelope.py``, ``contrib/outbox.py``).

====================  ==================================================================================================
``rows.py``           A row as the relay sees it; shards; the checks of a new row
``relay.py``          The relay: finds, publishes, marks, prunes. Knows the database by ``Store`` only
``store.py``          The store, in SQL; a framework hands its database over
``waking.py``         Waiting for a commit, in this process or, on PostgreSQL, in any
``file_lock.py``      One relay for a database that is a file
====================  ==================================================================================================
"""
