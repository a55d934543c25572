"""The script that every process of a supervisor begins with, run by its path.

It finds gnsq_like and the user's modules in the same places as the process that started it, and patches before any
other import. Its task is in the environment, because ``ps`` would show arguments.
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
