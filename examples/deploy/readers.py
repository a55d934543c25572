"""Readers for ``gnsq-like run readers``: the other files here run this module."""

from __future__ import annotations

import logging
import os

from gnsq_like import Message, Reader

logger = logging.getLogger(__name__)


def archive(message: Message) -> None:
    """Handle one click. Returning finishes the message; an exception requeues it."""
    logger.info("archived %s", message.body.decode(), extra={"attempts": message.attempts})


archiving = Reader(
    "clicks",
    "archive",
    archive,
    lookupd_http_addresses=os.environ.get("LOOKUPD_HTTP_ADDRESSES", "127.0.0.1:4161").split(","),
    max_in_flight=200,  # in all processes together
)
