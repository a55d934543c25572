"""Integrations: each module needs the extra of its name (``pip install "gnsq-like[flask]"``), and no other one."""
