"""Restoring a source after a failover or a promote: it follows the target, and what it has beyond goes to files."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from admin.base import Model, TopicName, TopicsRequest


class RestoreRequest(TopicsRequest):
    """Either topics or all: an empty list never means everything."""

    topics: list[TopicName] = Field(default=[], max_length=10_000)
    all: bool = Field(
        default=False,
        description="All topics of the link that were failed over; not those that were promoted.",
    )
    force: bool = Field(
        default=False,
        description="Restore also where the source has other records below the take-over than the target: they are "
        "exported, too.",
    )
    abandon: bool = Field(
        default=False,
        description="End a restore that waits. Refused once the source's brokers have truncated.",
    )

    @model_validator(mode="after")
    def _force_or_abandon(self) -> RestoreRequest:
        if self.force and self.abandon:
            raise ValueError("abandon needs no force")
        return self


class RestoreState(StrEnum):
    FAILED_OVER = "FAILED_OVER"
    PROMOTED = "PROMOTED"
    RESTORING = "RESTORING"
    RESTORED = "RESTORED"


class RestorePartition(Model):
    """One partition. Offsets are ends: one more than the last offset below."""

    topic: str
    partition: int
    state: RestoreState
    end: int | None = Field(default=None, description="Where the target took over.")
    agreed: int | None = Field(
        default=None,
        description="Up to where the source has the target's records; null: not known now. Its records from there on are "
        "exported and truncated.",
    )
    source_end: int | None = Field(
        default=None, description="Where the source's log ends; once RESTORED: ended."
    )
    records: int | None = Field(
        default=None,
        description="How many records the source has from `agreed` on, without transaction markers; null: not known. Once "
        "RESTORED: how many were exported.",
    )
    file: str | None = Field(
        default=None,
        description="File of the exported batches, at the sidecar; beside it lie the same records as .jsonl.",
    )
    reason: str | None = None


class RestorePlan(Model):
    """Where a restore stands, or what one would do."""

    link: str
    partitions: list[RestorePartition]
    blockers: list[str] = Field(default=[], description="Why a restore would be refused now.")
    warnings: list[str] = []
