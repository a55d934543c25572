"""Starts everything: an nsqd, the pages, and Dramatiq's worker.

    pip install ".[flask,dramatiq]"
    python examples/flask_jobs/run.py [PORT]

Then add a text, and look what has become of it; the last one fails, and becomes a dead letter after two retries:

    curl -d text="to be or not to be" http://127.0.0.1:8000/
    curl http://127.0.0.1:8000/
    curl -d text= http://127.0.0.1:8000/

Ctrl-C ends everything.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gnsq_like.testing import running_nsqd


def main(port: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commands = [["flask", "--app", "app", "run", "--port", port], ["dramatiq", "app", "--processes", "1"]]
    with running_nsqd() as nsqd:
        print(f"nsqd: {nsqd.tcp_address}, HTTP {nsqd.http_address}", flush=True)
        environment = {**os.environ, "NSQD": nsqd.tcp_address}
        children = [
            subprocess.Popen([sys.executable, "-m", *command], cwd=Path(__file__).parent, env=environment)
            for command in commands
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
