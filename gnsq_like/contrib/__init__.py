"""Integrations. Each module needs only the extra of its name (``[flask]``)."""
