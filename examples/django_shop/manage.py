"""Django's command line for the shop: ``python manage.py nsq_run`` runs its readers."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    if "OTEL_TRACES_EXPORTER" in os.environ:
        from opentelemetry.instrumentation import auto_instrumentation

        auto_instrumentation.initialize()
    execute_from_command_line(sys.argv)
