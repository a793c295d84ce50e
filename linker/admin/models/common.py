"""Names, patterns and the base of all models."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
)

from linker.admin.base import LINK_NAME_PATTERN as LINK_NAME_PATTERN
from linker.admin.base import TOPIC_NAME_PATTERN as TOPIC_NAME_PATTERN

GroupName = Annotated[str, StringConstraints(min_length=1, max_length=255)]


Millis = Annotated[int, Field(ge=0)]


def patterns(text: str) -> list[str]:
    """Comma-separated regular expressions, as Kafka's tools take them."""
    return [one for part in text.split(",") if (one := part.strip())]


def _check_patterns(text: str) -> str:
    for one in patterns(text):
        try:
            re.compile(one)
        except re.error as error:
            raise ValueError(f"{one!r} is no regular expression: {error}") from None
    return text


Patterns = Annotated[str, StringConstraints(max_length=10_000), AfterValidator(_check_patterns)]


GroupPromotePolicy = Literal["manual", "auto"]


GateChoice = Literal[
    "auto", "consumer", "classic", "transaction", "consumer+transaction", "classic+transaction"
]


ReadsPolicy = Literal["allow", "hold"]


class Model(BaseModel):
    """Base of everything below: unknown keys are refused, a misspelt field is an error and not a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- states


class Action(Model):
    """One thing that a change did, or with dry_run would do."""

    action: str = Field(description="What is done, e.g. 'create topic'.")
    resource: str = Field(description="To what, e.g. 'orders'.")
    detail: str = ""


class ChangeResult(Model):
    """Answer to every change except a promote."""

    dry_run: bool
    actions: list[Action]
    warnings: list[str] = []
    pending: bool = Field(
        default=False,
        description="It is durable and goes on after this answer; describe the sidecar to follow it.",
    )


class Forwarding(Model):
    """Whether produces that arrive at the target are forwarded to this link's source."""

    enabled: bool
    reason: str | None = Field(default=None, description="Why not, if not.")
    target_next_producer_id: int | None = None
    source_highest_producer_id: int | None = None


class Traffic(Model):
    """Counters since the sidecar's start; rates are the reader's business (two readings, `at` apart)."""

    fetched_bytes: int = 0
    served_bytes: int = 0
    forwarded_produces: int = 0
    forwarded_bytes: int = 0
    forward_errors: int = 0
