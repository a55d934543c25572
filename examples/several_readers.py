"""Two Readers as one, with health and metrics on one port.

    python examples/several_readers.py [nsqlookupd's HTTP address] [address for health and metrics]

Ctrl-C or SIGTERM stops both at the same time. While they run: curl http://127.0.0.1:8080/healthz and .../metrics
"""

import logging
import re
import sys

from gnsq_like import Message, Reader, run


def archive(message: Message) -> None:
    print("archive", message.topic, message.body, flush=True)


def mail(message: Message) -> None:
    print("mail", message.body, flush=True)


logging.basicConfig()  # shows failures of the handlers
address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4161"
pages = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:8080"
run(
    Reader(re.compile("^(clicks|views)$"), "archive", archive, lookupd_http_addresses=address, max_in_flight=200),
    Reader("clicks", "mail", mail, lookupd_http_addresses=address, max_in_flight=10, rate_limit=50),
    health=pages,
    metrics=pages,
)
