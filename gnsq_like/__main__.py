"""``python -m gnsq_like`` is the command ``gnsq-like``."""

from gnsq_like.cli import main

if __name__ == "__main__":
    main()
