"""nsqadmin's JSON API, to the letter (docs/internals 5.1), and /alerts: a table of paths, methods and functions.

Scripts written for nsqadmin still work: a JSON body is read whatever its content type. Responses are nsqadmin's, null
for an empty list included. Differences, all deliberate: names that no daemon would accept are 400 INVALID_TOPIC or
INVALID_CHANNEL everywhere; without nsqlookupds, POST /topics creates the topic, which nsqadmin only claims to do; texts
of errors of daemons and of wrong JSON are our own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flask import Response, request

from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.web.operations import Target
from gnsq_like.admin.web.replies import response_of, warning
from gnsq_like.admin.web.site import Site
from gnsq_like.cluster.operations import CHANGES
from gnsq_like.cluster.rounds import NoAnswer
from gnsq_like.errors import UsageError
from gnsq_like.httpd.wsgi import HTTPProblem, respond
from gnsq_like.server.shared.gotext import GoObject, read_object
from gnsq_like.wire.names import is_valid_name

logger = logging.getLogger(__name__)

#: Longest body that is read, in bytes.
_MOST_BYTES = 1024 * 1024

Function = Callable[..., object]


class API:
    """The API of a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        #: Path below /api, with Flask's placeholders: method: function.
        self.routes: dict[str, dict[str, Function]] = {
            "/topics": {"GET": self.topics, "POST": self.create},
            "/topics/<topic>": {"GET": self.topic, "POST": self.change, "DELETE": self.delete},
            "/topics/<topic>/<channel>": {"GET": self.channel, "POST": self.change, "DELETE": self.delete},
            "/nodes": {"GET": self.nodes},
            "/nodes/<node>": {"GET": self.node, "DELETE": self.tombstone},
            "/counter": {"GET": self.counter},
            "/alerts": {"GET": self.alerts},
        }

    def answer(self, path: str, **names: str) -> Response:
        """The response to a request for one of the paths of ``routes``. May switch, or block."""
        is_change = request.method in ("POST", "DELETE")

        def call(function: Function) -> Any:
            if is_change and not self._site.identity.may_write:
                raise HTTPProblem(403, "FORBIDDEN")
            _check_names(names)
            try:
                return function(**names)
            except NoAnswer as exc:
                raise _upstream_error(f"failed to query any {exc.kind}: {exc}") from exc
            except UsageError as exc:
                raise HTTPProblem(400, str(exc)) from exc

        method = "GET" if request.method == "HEAD" else request.method
        return response_of(respond(self.routes[path], method, call, request.path))

    # -- reading ---------------------------------------------------------------------------------------

    def topics(self) -> dict[str, object]:
        cluster = self._site.cluster
        if request.args.get("inactive") == "true":
            inactive = self._site.run(cluster.inactive_topics)
            topics = {topic: channels or None for topic, channels in inactive.value.items()}
            return {"topics": topics, "message": warning(inactive.warnings)}
        found = self._site.run(cluster.topics)
        return {"topics": found.value or None, "message": warning(found.warnings)}

    def topic(self, topic: str) -> dict[str, object]:
        found = self._site.run(self._site.cluster.topic, topic)
        return {**found.value.total.as_json(), "message": warning(found.warnings)}

    def channel(self, topic: str, channel: str) -> dict[str, object]:
        found = self._site.run(self._site.cluster.channel, topic, channel)
        figures = {} if found.value is None else found.value.as_json()
        return {**figures, "message": warning(found.warnings)}

    def nodes(self) -> dict[str, object]:
        found = self._site.run(self._site.cluster.nodes)
        return {"nodes": [node.as_json() for node in found.value] or None, "message": warning(found.warnings)}

    def node(self, node: str) -> dict[str, object]:
        found = self._site.run(self._site.cluster.node, node)
        if found.value is None:
            raise HTTPProblem(404, "NODE_NOT_FOUND")
        return {
            "node": node,
            "topics": [topic.as_json() for topic in found.value.topics] or None,
            "total_messages": found.value.messages,
            "total_clients": found.value.clients,
            "message": warning(found.warnings),
        }

    def counter(self) -> dict[str, object]:
        found = self._site.run(self._site.cluster.counter)
        stats = {
            f"{topic}:{channel}:{node}": {
                "node": node,
                "topic_name": topic,
                "channel_name": channel,
                "message_count": count,
            }
            for (topic, channel, node), count in sorted(found.value.items())
        }
        return {"stats": stats, "message": warning(found.warnings)}

    def alerts(self) -> dict[str, object]:
        overview = self._site.look()
        found = [{**alert.as_json(), "since": int(since)} for alert, since in self._site.alerts.items()]
        return {"alerts": found, "message": warning(overview.warnings)}

    # -- changing --------------------------------------------------------------------------------------

    def create(self) -> dict[str, object]:
        body = _body()
        topic, channel = _text(body, "topic"), _text(body, "channel")
        if not is_valid_name(topic):
            raise HTTPProblem(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise HTTPProblem(400, "INVALID_CHANNEL")
        return self._perform("create_channel" if channel else "create_topic", Target(topic, channel))

    def change(self, topic: str, channel: str = "") -> dict[str, object]:
        action = _text(_body(), "action")
        if action not in CHANGES:
            raise HTTPProblem(400, "INVALID_ACTION")
        return self._perform(f"{action}_{'channel' if channel else 'topic'}", Target(topic, channel))

    def delete(self, topic: str, channel: str = "") -> dict[str, object]:
        return self._perform(f"delete_{'channel' if channel else 'topic'}", Target(topic, channel))

    def tombstone(self, node: str) -> dict[str, object]:
        try:
            topic = _body().text("topic")
        except (HTTPProblem, ValueError):
            raise HTTPProblem(400, "INVALID_BODY") from None
        if not is_valid_name(topic):
            raise HTTPProblem(400, "INVALID_TOPIC")
        return self._perform("tombstone_topic_producer", Target(topic, node=node))

    def _perform(self, action: str, target: Target) -> dict[str, object]:
        outcome: Performed = self._site.perform(action, target)
        if outcome.error:
            raise _upstream_error(outcome.error)
        return {"message": warning(outcome.warnings)}


def _upstream_error(text: str) -> HTTPProblem:
    """nsqadmin's response if no daemon has answered."""
    return HTTPProblem(502, f"UPSTREAM_ERROR: {text}")


def _check_names(names: dict[str, str]) -> None:
    for kind in ("topic", "channel"):
        if kind in names and not is_valid_name(names[kind]):
            raise HTTPProblem(400, f"INVALID_{kind.upper()}")


def read_body() -> bytes:
    """The body of this request; raises HTTPProblem if it is too large."""
    body = request.get_data()
    if len(body) > _MOST_BYTES:
        raise HTTPProblem(413, "BODY_TOO_BIG")
    return body


def _body() -> GoObject:
    body = read_body()
    if not body.strip():
        raise HTTPProblem(400, "EOF")
    try:
        return read_object(body)
    except ValueError as exc:
        raise HTTPProblem(400, f"invalid JSON: {exc}") from None


def _text(body: GoObject, name: str) -> str:
    try:
        return body.text(name)
    except ValueError as exc:
        raise HTTPProblem(400, f"invalid JSON: {exc}") from None
