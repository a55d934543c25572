"""Clients of the HTTP APIs without a limit of their own: few tests are about a timeout.

A busy machine may answer after minutes, and a request that hangs is found by the limit of the test, with all stacks.
"""

from typing import Any

import gnsq_like

#: Seconds for a request: longer than any test may take.
PATIENCE = 86_400.0


class NsqdHTTPClient(gnsq_like.NsqdHTTPClient):
    def __init__(self, address: str, timeout: float = PATIENCE, *more: Any, **options: Any) -> None:
        super().__init__(address, timeout, *more, **options)


class LookupdClient(gnsq_like.LookupdClient):
    def __init__(self, address: str, timeout: float = PATIENCE, *more: Any, **options: Any) -> None:
        super().__init__(address, timeout, *more, **options)
