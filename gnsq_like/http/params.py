"""Topics and channels as parameters of a request, checked before anything is sent."""

from __future__ import annotations

from gnsq_like.wire.names import encode_channel, encode_topic


def topic_params(topic: str) -> dict[str, str]:
    """Raises InvalidName."""
    encode_topic(topic)
    return {"topic": topic}


def channel_params(topic: str, channel: str) -> dict[str, str]:
    """Raises InvalidName."""
    encode_channel(channel)
    return {**topic_params(topic), "channel": channel}
