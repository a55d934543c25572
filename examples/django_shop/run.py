"""Starts the whole shop: an nsqd, the database, the pages and the readers.

    pip install ".[django]"
    python examples/django_shop/run.py [PORT]

Then open http://127.0.0.1:8000/ and order something. Ctrl-C ends everything. The orders, and messages
that are not published yet, stay in shop.sqlite3; those still in the nsqd are lost.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gnsq_like.testing import running_nsqd

MANAGE = [sys.executable, str(Path(__file__).parent / "manage.py")]


def main(port: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running_nsqd() as nsqd:
        environment = {**os.environ, "NSQ_NSQD_TCP_ADDRESSES": nsqd.tcp_address}
        subprocess.run([*MANAGE, "migrate", "--verbosity", "0"], env=environment, check=True)
        children = [
            subprocess.Popen([*MANAGE, *command], env=environment)
            for command in (["nsq_run", "--noreload", "--relay"], ["runserver", "--noreload", port])
        ]
        try:
            while all(child.poll() is None for child in children):
                time.sleep(0.1)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["8000"]))
