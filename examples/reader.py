"""Prints messages until Ctrl-C: python examples/reader.py [nsqlookupd's HTTP address]"""

import logging
import sys

from gnsq_like import Message, Reader


def handler(message: Message) -> None:  # returns: finished; raises: requeued
    print(message.attempts, message.body, message.nsqd_address, flush=True)


address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4161"
reader = Reader("clicks", "archive", handler, lookupd_http_addresses=address)
logging.basicConfig()  # shows failures of the handler
reader.run()
