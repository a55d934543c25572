"""Publishes ten messages: python examples/producer.py [nsqd's TCP address]"""

import sys

from gnsq_like import Producer

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
with Producer(address) as producer:
    for number in range(10):
        producer.publish("clicks", b"click %d" % number)  # returns at nsqd's OK
