"""The buttons of all pages that change something."""

from __future__ import annotations

import time

from flask import request
from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.history.alerts import down
from gnsq_like.admin.web.operations import Target
from gnsq_like.admin.web.pages.page import Route
from gnsq_like.admin.web.screens import Screens
from gnsq_like.errors import NSQError
from gnsq_like.wire.names import is_valid_name

#: The note after each action.
_DONE = {
    "create_topic": "{topic} is registered.",
    "create_channel": "{topic}/{channel} is registered, and created on the nodes that have {topic}.",
    "pause_topic": "{topic} is paused: its messages wait in the topic.",
    "unpause_topic": "{topic} runs again.",
    "empty_topic": "{topic} is empty.",
    "delete_topic": "{topic} is deleted.",
    "pause_channel": "{channel} is paused: its consumers get no messages.",
    "unpause_channel": "{channel} runs again.",
    "empty_channel": "{channel} is empty.",
    "delete_channel": "{channel} is deleted.",
    "dismiss_node": "{node} is not missed any more.",
    "tombstone_topic_producer": "{topic} is tombstoned and deleted on {node}.",
}


def _act(screens: Screens) -> AnyResponse:
    """Carry out the action of a button."""
    form = request.form
    target = Target(form.get("topic", "").strip(), form.get("channel", "").strip(), form.get("node", "").strip())
    action = form.get("action", "")
    if action == "create":
        action = "create_channel" if target.channel else "create_topic"
    is_dismissal = action == "dismiss_node"
    for kind, name in (("topic", target.topic), ("channel", target.channel)):
        if (name or (kind == "topic" and not is_dismissal)) and not is_valid_name(name):
            return screens.refused(400, f"“{name[:100]}” is not a name that a {kind} can have.")
    of_node = is_dismissal or "tombstone" in action
    fits = ("channel" in action) == bool(target.channel) and of_node == bool(target.node)
    if action not in _DONE or not fits:
        return screens.refused(400, "There is no such action.")
    try:
        outcome = screens.site.perform(action, target)
        where = _after(screens, action, target)
    except NSQError as exc:
        return screens.go(_after(screens, "", target), f"That did not work: {exc}", "bad")
    if is_dismissal:
        screens.site.run(screens.site.recorder.alerts.end, down(target.node), time.time())
    return screens.told(where, outcome, _DONE[action].format(**vars(target)))


def _after(screens: Screens, action: str, target: Target) -> str:
    """The page to show after an action."""
    link = screens.renderer.link
    if action == "delete_topic":
        return link("topics")
    if not target.topic:
        return link("activity")
    if action == "create_topic":
        return link("lookup")
    if action == "create_channel" and not screens.site.run(screens.site.cluster.producers_of, target.topic):
        return link("lookup")  # it is registered, and made on a node with the topic's first message
    if target.channel and action != "delete_channel":
        return link("channel", topic_name=target.topic, channel=target.channel)
    return link("topic", topic_name=target.topic)


ROUTE = Route("/act", "act", "", post=_act)
