"""Clients of the HTTP APIs that wait longer: a busy machine answers late, and few tests are about a timeout."""

from typing import Any

import gnsq_like

#: Seconds for a request.
PATIENCE = 60.0


class NsqdHTTPClient(gnsq_like.NsqdHTTPClient):
    def __init__(self, address: str, timeout: float = PATIENCE, *more: Any, **options: Any) -> None:
        super().__init__(address, timeout, *more, **options)


class LookupdClient(gnsq_like.LookupdClient):
    def __init__(self, address: str, timeout: float = PATIENCE, *more: Any, **options: Any) -> None:
        super().__init__(address, timeout, *more, **options)
