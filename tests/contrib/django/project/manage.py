import os
import sys

if os.environ.get("PATCHED"):
    from gevent import monkey

    monkey.patch_all()

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
