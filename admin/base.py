"""The base of all models, patterns of names, and values that all answers of the admin API share."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

RETRY_AFTER = 2  # seconds; after about that long there is a new link controller

LINK_NAME_PATTERN = r"^[a-zA-Z0-9._-]{1,128}$"
TOPIC_NAME_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"

LinkName = Annotated[str, StringConstraints(pattern=LINK_NAME_PATTERN)]
TopicName = Annotated[str, StringConstraints(pattern=TOPIC_NAME_PATTERN)]


class Model(BaseModel):
    """Base of all models. Unknown keys are refused, so that a misspelt field is an error and not a default.

    A model gets its validator when it is first used: a sidecar, or a command, is asked for few of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class TopicsRequest(Model):
    """Either topics or all: an empty list never means everything."""

    topics: list[TopicName] = []
    all: bool = False

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if bool(self.topics) == self.all:
            raise ValueError("give either topics or all")
        return self


class DistinctTopicsRequest(TopicsRequest):
    """Each of the topics once."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("a topic is named twice")
        return self
