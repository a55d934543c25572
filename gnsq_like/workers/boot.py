"""The script that every process of a supervisor begins with, run by its path.

So it finds gnsq_like, and the user's modules, where the process that started it found them, and it patches before
anything else is imported. It gets its task in the environment, not as arguments, which ``ps`` shows.
"""

import json
import os
import sys


def main() -> None:
    """Become the process that the task names."""
    task = json.loads(os.environ.pop("GNSQ_LIKE_TASK"))
    sys.path[:] = task["sys_path"]
    if task["patch"]:
        from gevent import monkey

        monkey.patch_all()
    from importlib import import_module

    sys.exit(import_module(task["module"]).main(task))


if __name__ == "__main__":
    main()
