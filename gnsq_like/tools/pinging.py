"""Whether the daemons of a cluster answer, and how fast: ``gnsq-like ping``. May switch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.errors import HTTPStatusError, NSQError
from gnsq_like.tools.daemons import Daemons
from gnsq_like.tools.rounds import Round


@dataclass
class Pong:
    """What came of asking one daemon."""

    kind: str  #: "nsqlookupd" or "nsqd"
    http_address: str
    #: Of its answer to /ping; None if there was none.
    seconds: float | None = None
    version: str = ""
    #: Why it is not well; empty if it is.
    problem: str = ""


def ping(daemons: Daemons) -> list[Pong]:
    """Ask the given daemons, and the nsqds that the nsqlookupds know, whether they are well.

    :returns: nsqlookupds first; each daemon once, also if it did not answer
    """
    lookupds = daemons.ask_lookupds(lambda client: (_ping(client), [node.http_address for node in client.nodes()]))
    known = {address for _, nodes in lookupds.answers.values() for address in nodes}
    addresses = list(dict.fromkeys([*daemons.nsqd_http_addresses, *sorted(known)]))
    nsqds = daemons.ask_nsqds(addresses, _ping)
    pinged = Round({address: pong for address, (pong, _) in lookupds.answers.items()}, lookupds.failures)
    return [
        *_pongs("nsqlookupd", daemons.lookupd_http_addresses, pinged),
        *_pongs("nsqd", addresses, nsqds),
    ]


def _ping(client: NsqdHTTPClient | LookupdClient) -> tuple[float, str, str]:
    """Seconds, version and problem. An nsqd that cannot write to its disk answers, and is not well."""
    problem = ""
    start = time.monotonic()
    try:
        client.ping()
    except HTTPStatusError as exc:
        if exc.https_port is not None:
            raise  # it is asked again over https
        problem = exc.message or str(exc)
    seconds = time.monotonic() - start
    info = client.info()
    return seconds, str(info.get("version", "")) if isinstance(info, dict) else info.version, problem


def _pongs(kind: str, addresses: Iterable[str], answers: Round[tuple[float, str, str]]) -> list[Pong]:
    found = []
    for address in dict.fromkeys(addresses):
        if address in answers.answers:
            found.append(Pong(kind, address, *answers.answers[address]))
        else:
            found.append(Pong(kind, address, problem=_text(answers.failures[address])))
    return found


def _text(error: NSQError) -> str:
    return " ".join(str(error).split())
