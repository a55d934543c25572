"""The host in a browser's request, for servers that answer to expected names only.

Another site may resolve its own name to an address of this machine (DNS rebinding), and its scripts could then read
everything that is served here. So unexpected names are refused.
"""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


def host_of(header: str) -> str | None:
    """The host of a Host header in lower case, without port and brackets; None if it is malformed."""
    found = _HOST.fullmatch(header)
    return (found[1] or found[2]).lower().rstrip(".") if found else None


def is_ip(host: str) -> bool:
    """Whether a host is an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
