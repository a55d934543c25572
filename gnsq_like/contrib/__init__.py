"""Integrations. Each module needs only the extra of its name (``pip install "gnsq-like[flask]"``)."""
