"""Promote and failover: options, plans, jobs, producers at the source."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, model_validator

from admin.base import DistinctTopicsRequest, Model
from admin.models.common import Millis
from admin.models.states import MirrorState, PromotePhase
from admin.validation_models import Policy, PromoteValidation


class PromoteOptions(Model):
    """Limits of one promote. Each wait ends by one of them: the promote is abandoned then, and forwarding goes on."""

    max_lag: int = Field(
        default=10_000, ge=0, description="Fence when no partition lags by more offsets than this."
    )
    catch_up_timeout_ms: Millis = Field(default=600_000, description="Longest time spent in CATCHING_UP.")
    fence_timeout_ms: Millis = Field(
        default=10_000,
        description="Longest time that writes are held before hand-over; then the promote is abandoned.",
    )
    batch_partitions: int | None = Field(
        default=None,
        ge=1,
        description="Most partitions whose writes are held together. Default: 32 of a promote (the first of several batches "
        "has 4), 100 of a switch, which takes whole topics, a larger one by itself. A smaller number holds "
        "each writer for less time, and moves less before the first failure ends the rest. Not with fence_source.",
    )
    transaction_timeout_ms: Millis = Field(
        default=600_000,
        description="Longest time that one transaction that is open at the source is waited for; then the promote is "
        "abandoned.",
    )
    abort_open_transactions: bool = Field(
        default=False,
        description="Abort such a transaction at the source instead, which fences its producer.",
    )
    fence_source: bool = Field(
        default=False,
        description="From the fence on the source refuses writes, by an ACL (DENY WRITE for User:*) of each topic, which is "
        "taken away if the promote is abandoned, and stays if it is done.",
    )
    as_own_topic: bool = Field(
        default=False,
        description="Needed for mirrors of a link with a prefix, and for no others: the topic is the target's own from now "
        "on, and the source's producers go on writing there.",
    )
    accept_missing: int = Field(
        default=0,
        ge=0,
        description="Records that the source has and replicas lack, because their logs start later, and that may be left "
        "behind: all partitions together, of each partition the replica that lacks most. With more the promote is refused.",
    )
    validation: Policy | None = Field(
        default=None,
        description="require: no writes are held before every replica is proved equal almost to its end; warn: those "
        "that are not are only shown; skip. Default: validation.policy of the configuration.",
    )

    @model_validator(mode="after")
    def _whole_topics(self) -> PromoteOptions:
        if self.batch_partitions is not None and self.fence_source:
            raise ValueError(
                "batch_partitions and fence_source: the source refuses writes to whole topics only; give one of the two"
            )
        return self


class PromoteRequest(DistinctTopicsRequest):
    """Either topics or all: an empty list never means everything."""

    options: PromoteOptions = PromoteOptions()
    requested_by: str | None = Field(
        default=None,
        max_length=200,
        description="The asker's own words about itself: for the evidence, not checked. The command line says user@host.",
    )


class PromoteTopic(Model):
    topic: str
    partitions: int
    phase: PromotePhase
    lag: int | None = None
    reason: str | None = None
    by_pattern_since: datetime | None = Field(
        default=None,
        description="In a plan: when its mirror was made, if the link's patterns take the topic.",
    )


class OpenTransaction(Model):
    """A transaction that had not ended."""

    producer_id: int
    producer_epoch: int
    start_offset: int


class FailoverPartition(Model):
    """The part of one partition that a failover takes over. Offsets are ends: one more than the last offset below."""

    topic: str
    partition: int
    state: MirrorState
    end: int | None = Field(
        default=None, description="Where the target takes over: the end of the longest replica."
    )
    shortest_replica_end: int | None = Field(
        default=None, description="In a dry run: the end of the shortest replica."
    )
    source_end: int | None = Field(
        default=None, description="The source's end as it was seen last; null: not since the sidecar began."
    )
    acked_end: int | None = Field(
        default=None,
        description="The end of the newest forwarded write that the source acknowledged, likewise.",
    )
    missing: int | None = Field(
        default=None,
        description="How many offsets the source had beyond `end`, as far as its end was seen; null: nothing was seen of "
        "it, or a sidecar that may have seen more was away (`reason` names it).",
    )
    aborted: list[OpenTransaction] = Field(
        default=[], description="Transactions that were open, ended by an abort marker at the new leader."
    )
    reason: str | None = None


class FailoverRequest(DistinctTopicsRequest):
    """Either topics or all: an empty list never means everything."""

    force: bool = Field(default=False, description="Fail over although the source still answers.")
    as_own_topic: bool = Field(
        default=False, description="Needed for mirrors of a link with a prefix, as for a promote."
    )
    timeout_ms: Millis = Field(
        default=120_000,
        description="Longest time that writes are held before hand-over; then the failover is abandoned.",
    )


class FailoverPlan(Model):
    """Answer to a failover with dry_run: nothing was changed."""

    dry_run: bool = True
    link: str
    partitions: list[FailoverPartition]
    blockers: list[str] = Field(default=[], description="Why a failover would be refused now.")
    warnings: list[str] = []


class SourceProducer(Model):
    """A producer of a partition as the source's leader knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None = Field(
        default=None, description="null: it has none, or the link's principal may not see it."
    )
    last_write_ms: int | None = Field(default=None, description="How long ago it wrote last.")
    open_since_offset: int | None = Field(default=None, description="Where its open transaction begins.")
    direct: bool = Field(description="It writes to the source itself: it was not moved.")


class PromotePlan(Model):
    """Answer to a promote with dry_run: nothing was changed."""

    dry_run: bool = True
    link: str
    topics: list[PromoteTopic]
    blockers: list[str] = Field(default=[], description="Why a promote would be refused now.")
    warnings: list[str] = []
    producers: list[SourceProducer] = Field(
        default=[],
        description="Producers at the source that were not moved, and those with an open transaction.",
    )
    validation: Policy = Field(default="skip", description="How it would use the validator.")
    unproved: list[str] = Field(
        default=[],
        description="The replicas that are to be proved first; the promote itself has the validator do so.",
    )
    configs: list[str] = Field(
        default=[],
        description="Where source and target would not do the same with a topic, and what is done about it.",
    )


class PromoteJobStatus(Model):
    """A promote or a failover that was started. It goes on by itself; reading it never changes it."""

    id: str
    link: str
    phase: PromotePhase
    reason: str | None = Field(default=None, description="Why it was abandoned, or what it is waiting for.")
    topics: list[PromoteTopic]
    started_at: datetime
    finished_at: datetime | None = None
    phases_ms: dict[PromotePhase, int] = Field(default={}, description="Time spent in each phase so far.")
    validation: PromoteValidation | None = Field(default=None, description="null: it was skipped.")
    accept_missing: int = Field(
        default=0,
        description="Records that could be left behind, where replicas start later than the source.",
    )
    requested_by: str | None = Field(default=None, description="The asker's own words about itself.")
    warnings: list[str] = Field(
        default=[],
        description="Troubles that did not stop it: replicas not proved, transactions aborted, writes to the source "
        "after the hand-over.",
    )
    failover: list[FailoverPartition] | None = Field(
        default=None,
        description="Of a failover: how much of each partition was taken over, and how much was not; null for a promote.",
    )
    source_fenced: list[str] = Field(
        default=[],
        description="Topics that the source refuses writes to, or may, because of this promote: DENY WRITE for User:*.",
    )

    @property
    def over(self) -> bool:
        """Nothing is under way any more, its evidence included."""
        proving = self.validation is not None and self.validation.state == "PENDING"
        return self.phase.final and not proving
