"""The dead letters of a topic; its form takes them, gives them back, replays and drops them."""

from __future__ import annotations

import time

from flask import request
from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.web.operations import Target
from gnsq_like.admin.web.pages.page import Page, Route, View
from gnsq_like.admin.web.screens import Screens
from gnsq_like.admin.web.words import body
from gnsq_like.errors import NSQError
from gnsq_like.tools.dead_letters import CHANNEL, read_letter


def letters_page(view: View, topic_name: str) -> Page:
    session = view.site.letters.find(view.cluster.name, topic_name)
    letters: list[dict[str, object]] = []
    for name, message in list(session.queue.held.items()) if session else []:
        found = read_letter(message)
        letters.append(
            {
                "id": name,
                "reason": found.reason if found else "",
                "place": found.error_place if found else "",
                "origin": found.topic if found else "",
                "channel": found.channel if found else "",
                "attempts": found.attempts if found else 0,
                "at": found.given_up_ns / 1e9 if found else message.timestamp,
                "text": body(found.body if found else message.body),
            }
        )
    values = {
        "topic": topic_name,
        "held": session is not None,
        "left": session.left if session else 0.0,
        "letters": letters,
        "channel": CHANNEL,
        "now": time.time(),
        "commands": [
            view.cluster.command("dlq", *words)
            for words in (("list", topic_name), ("replay", topic_name, "--all"), ("drop", topic_name, "--all"))
        ],
    }
    problems = session.queue.problems if session else []
    return Page("letters.html", f"Dead letters of {topic_name}", values, problems)


def _change(screens: Screens, topic_name: str) -> AnyResponse:
    site, cluster, form = screens.site, screens.site.cluster, request.form
    action, letter = form.get("action", ""), form.get("id", "")
    said = {
        **{"open": "Letters are coming.", "release": "They are given back.", "replay": "Published again."},
        **{"replay_all": "All are published again.", "drop": "Dropped."},
    }
    if action not in said:
        return screens.refused(400, "There is no such action.")

    def carry_out() -> Performed:
        if action == "open":
            site.run(site.letters.open, cluster, topic_name)
        elif action == "release":
            site.run(site.letters.release, cluster, topic_name)
        elif action == "replay":
            site.run(site.letters.replay, cluster, topic_name, letter)
        elif action == "replay_all":
            return Performed(*site.run(site.letters.replay_all, cluster, topic_name))
        else:
            site.run(site.letters.drop, cluster, topic_name, letter)
        return Performed(1)

    where = screens.renderer.link("letters", topic_name=topic_name)
    details = {"letter": letter} if letter else {}
    names = {"open": "read_letters", "release": "release_letters", "replay_all": "replay_letters"}
    name = names.get(action, f"{action}_letter")
    try:
        outcome = site.operations.record(
            name, cluster, Target(topic_name), request, site.identity, carry_out, **details
        )
    except NSQError as exc:
        return screens.go(where, f"That did not work: {exc}", "bad")
    return screens.told(where, outcome, said[action])


ROUTE = Route("/topics/<topic_name>/-/letters", "letters", "topics", letters_page, _change, has_messages=True)
