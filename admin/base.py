"""Patterns of names, and values that all answers of the admin API share."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

RETRY_AFTER = 2  # seconds; after about that long there is a new link controller

LINK_NAME_PATTERN = r"^[a-zA-Z0-9._-]{1,128}$"
TOPIC_NAME_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"

LinkName = Annotated[str, StringConstraints(pattern=LINK_NAME_PATTERN)]
TopicName = Annotated[str, StringConstraints(pattern=TOPIC_NAME_PATTERN)]
