"""The names of a topic and a channel in an HTTP request, checked as by both of NSQ's daemons."""

from __future__ import annotations

from gnsq_like.httpd.wsgi import HTTPProblem, Request, argument
from gnsq_like.wire.names import is_valid_name


def topic_and_channel_names(request: Request) -> tuple[str, str]:
    """The two parameters of the channel endpoints of both daemons; raises HTTPProblem."""
    parameters = request.parameters()
    topic = argument(parameters, "topic")
    if not is_valid_name(topic):
        raise HTTPProblem(400, "INVALID_ARG_TOPIC")
    channel = argument(parameters, "channel")
    if not is_valid_name(channel):
        raise HTTPProblem(400, "INVALID_ARG_CHANNEL")
    return topic, channel
