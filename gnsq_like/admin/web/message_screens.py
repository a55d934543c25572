"""The pages on which messages are looked at: those that come now, and dead letters."""

from __future__ import annotations

import time

from flask import Response, request
from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.peek import MOST_MESSAGES, SECONDS
from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.web.operations import Target
from gnsq_like.admin.web.pages.page import Page, View
from gnsq_like.admin.web.screens import Screens
from gnsq_like.admin.web.site import Site
from gnsq_like.admin.web.words import body
from gnsq_like.errors import NSQError
from gnsq_like.tools.dead_letters import CHANNEL, read_letter


class MessageScreens:
    """These pages of a site. Who may not write may not see messages either."""

    def __init__(self, site: Site, screens: Screens) -> None:
        self._site = site
        self._screens = screens

    def peek(self, topic_name: str) -> AnyResponse:
        """The look at a topic; a POST begins one."""
        if (refusal := self._refusal()) is not None:
            return refusal
        if request.method == "POST":
            return self._begin(topic_name)
        return self._screens.show("topics", lambda view: self._peek_page(view, topic_name))

    def _begin(self, topic: str) -> AnyResponse:
        if (refusal := self._screens.allowed()) is not None:
            return refusal
        site = self._site

        def carry_out() -> Performed:
            def start() -> None:
                rate = site.recorder_of(cluster.name).topic_trend(topic).rate_in
                site.peeks.start(cluster, topic, rate)

            site.run(start)
            return Performed(1)

        cluster = site.cluster
        try:
            site.operations.record("look_at_messages", cluster, Target(topic), request, site.identity, carry_out)
        except NSQError as exc:
            where = self._screens.renderer.link("topic", topic_name=topic)
            return self._screens.go(where, f"No look: {exc}", "bad")
        return self._screens.go(self._screens.renderer.link("peek", topic_name=topic), "Looking for 30 s.")

    def _peek_page(self, view: View, topic: str) -> Page:
        look = self._site.peeks.find(view.cluster.name, topic)
        if look is None:
            return Page("error.html", topic, {"what": "look at", "name": topic, "why": "It has ended."}, status=404)
        values = {
            "topic": topic,
            "messages": look.messages[::-1],
            "running": look.running,
            "left": look.left,
            "began": look.began,
            "most": MOST_MESSAGES,
            "seconds": SECONDS,
            "sample_rate": look.sample_rate,
            "skipped": look.skipped,
        }
        return Page("peek.html", f"Messages of {topic}", values, look.problems[:3])

    def letters(self, topic_name: str) -> AnyResponse:
        """The dead letters of a topic; a POST takes, gives back, replays or drops them."""
        if (refusal := self._refusal()) is not None:
            return refusal
        if request.method == "POST":
            return self._change_letters(topic_name)
        return self._screens.show("topics", lambda view: self._letters_page(view, topic_name))

    def _letters_page(self, view: View, topic: str) -> Page:
        session = self._site.letters.find(view.cluster.name, topic)
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
            "topic": topic,
            "held": session is not None,
            "left": session.left if session else 0.0,
            "letters": letters,
            "channel": CHANNEL,
            "now": time.time(),
            "commands": [
                view.cluster.command("dlq", *words)
                for words in (("list", topic), ("replay", topic, "--all"), ("drop", topic, "--all"))
            ],
        }
        problems = session.queue.problems if session else []
        return Page("letters.html", f"Dead letters of {topic}", values, problems)

    def _change_letters(self, topic: str) -> AnyResponse:
        if (refusal := self._screens.allowed()) is not None:
            return refusal
        site, cluster, form = self._site, self._site.cluster, request.form
        action, letter = form.get("action", ""), form.get("id", "")
        said = {
            **{"open": "Letters are coming.", "release": "They are given back.", "replay": "Published again."},
            **{"replay_all": "All are published again.", "drop": "Dropped."},
        }
        if action not in said:
            return self._screens.refused(400, "There is no such action.")

        def carry_out() -> Performed:
            if action == "open":
                site.run(site.letters.open, cluster, topic)
            elif action == "release":
                site.run(site.letters.release, cluster, topic)
            elif action == "replay":
                site.run(site.letters.replay, cluster, topic, letter)
            elif action == "replay_all":
                return Performed(*site.run(site.letters.replay_all, cluster, topic))
            else:
                site.run(site.letters.drop, cluster, topic, letter)
            return Performed(1)

        where = self._screens.renderer.link("letters", topic_name=topic)
        details = {"letter": letter} if letter else {}
        names = {"open": "read_letters", "release": "release_letters", "replay_all": "replay_letters"}
        name = names.get(action, f"{action}_letter")
        try:
            outcome = site.operations.record(name, cluster, Target(topic), request, site.identity, carry_out, **details)
        except NSQError as exc:
            return self._screens.go(where, f"That did not work: {exc}", "bad")
        return self._screens.told(where, outcome, said[action])

    def _refusal(self) -> Response | None:
        if not self._site.options.peek:
            return self._screens.refused(403, "Looking at messages is switched off here.")
        if not self._site.identity.may_write:
            return self._screens.refused(403, "Messages are shown only to those who may change something.")
        return None
