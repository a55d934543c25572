"""Actions of users: carried out in the core's thread, recorded in the audit log, and notified, as nsqadmin does.

Pages and API call :meth:`Operations.perform`; each action is an entry of ACTIONS.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from flask import Request

from gnsq_like.admin.audit import AuditLog
from gnsq_like.admin.core import Core
from gnsq_like.admin.upstream import actions
from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.admin.web.identity import Identity, basic_credentials
from gnsq_like.cluster.operations import DONE
from gnsq_like.cluster.rounds import NoAnswer
from gnsq_like.errors import NSQError


@dataclass(frozen=True)
class Target:
    """The topic, channel or node of an action."""

    topic: str = ""
    channel: str = ""
    node: str = ""


#: The actions, by nsqadmin's names.
ACTIONS: dict[str, Callable[[Cluster, Target], Performed]] = {
    "dismiss_node": lambda cluster, target: actions.dismiss(cluster, target.node),
    "tombstone_topic_producer": lambda cluster, target: actions.tombstone(cluster, target.topic, target.node),
}


def _operating(word: str) -> dict[str, Callable[[Cluster, Target], Performed]]:
    return {
        f"{word}_topic": lambda cluster, target: actions.operate(cluster, word, target.topic),
        f"{word}_channel": lambda cluster, target: actions.operate(cluster, word, target.topic, target.channel),
    }


for _word in DONE:
    ACTIONS |= _operating(_word)


class Operations:
    """Performs the actions of users.

    :param audit: where they are recorded
    :param notify: sends an entry to the endpoint, and does not wait
    """

    def __init__(self, core: Core, audit: AuditLog, notify: Callable[[dict[str, object]], object]) -> None:
        self._core = core
        self._audit = audit
        self._notify = notify

    def perform(self, action: str, cluster: Cluster, target: Target, request: Request, identity: Identity) -> Performed:
        """Carry out an action of ACTIONS. May switch, or block.

        :raises NSQError: NoAnswer, as nsqadmin's 502; UsageError for an invalid name
        """
        return self.record(
            action, cluster, target, request, identity, lambda: self._core.run(ACTIONS[action], cluster, target)
        )

    def record(
        self,
        action: str,
        cluster: Cluster,
        target: Target,
        request: Request,
        identity: Identity,
        carry_out: Callable[[], Performed],
        **details: object,
    ) -> Performed:
        """Call ``carry_out`` and record the result. Raises what it raises."""
        entry = _entry(action, target, request, identity.user)
        if cluster.name:
            entry["cluster"] = cluster.name
        audited = {**entry, **details}
        if not identity.user and (claimed := basic_credentials(request)[0]):
            entry["user"] = claimed  # as nsqadmin; nobody has checked it, so it is not in the audit log
        try:
            outcome = carry_out()
        except NSQError as exc:
            self._audit.add({**audited, "result": "failed", "error": str(exc)})
            # Like nsqadmin, notify these even when they failed.
            if isinstance(exc, NoAnswer) and action.startswith(("pause", "unpause", "empty")):
                self._notify(entry)
            raise
        failed = outcome.warnings and not outcome.done
        result = "failed" if failed else "partly" if outcome.warnings else "ok"
        error = {"error": "; ".join(outcome.warnings)} if outcome.warnings else {}
        self._audit.add({**audited, "result": result, **error})
        if action == "create_channel":  # as nsqadmin, which creates both
            of_topic = {name: value for name, value in entry.items() if name != "channel"}
            self._notify({**of_topic, "action": "create_topic"})
        if not outcome.error:
            self._notify(entry)
        return outcome


def _entry(action: str, target: Target, request: Request, user: str) -> dict[str, object]:
    """nsqadmin's notification."""
    port = request.environ.get("REMOTE_PORT")
    # Flask has decoded the path: an ephemeral name's "#" would end it.
    path = quote(request.script_root + request.path, "/$&+,:;=@~")
    if query := request.query_string.decode("latin-1"):
        path += f"?{query}"
    is_https = request.is_secure or request.headers.get("X-Scheme") == "https"
    url = f"{'https' if is_https else 'http'}://{request.host}{path}"
    entry: dict[str, object] = {
        "action": action,
        "topic": target.topic,
        "channel": target.channel,
        "node": target.node,
        "timestamp": int(time.time()),
        "user": user,
        "remote_ip": f"{request.remote_addr or ''}:{port}" if port else request.remote_addr or "",
        "user_agent": request.headers.get("User-Agent", ""),
        "url": url,
        "via": socket.gethostname(),
    }
    return {name: value for name, value in entry.items() if value or name not in ("channel", "node", "user")}
