"""Links: what is asked for, and what they are."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    create_model,
    model_validator,
)

from admin.base import LinkName, Model
from admin.models.acls import AclSyncStatus
from admin.models.common import (
    AclOperations,
    AclResources,
    AclSync,
    ConfigNames,
    ConfigSync,
    Forwarding,
    GateChoice,
    GroupPromotePolicy,
    HeartbeatTopic,
    Patterns,
    PrincipalRules,
    Rate,
    ReadsPolicy,
    TopicPrefix,
    TopicsDeleted,
    Traffic,
)
from admin.models.states import MirrorState
from controller.plan.producer_ids import BLOCK, DEFAULT_MARGIN, MOST_BLOCKS, RESERVE


class LinkOptions(Model):
    """Settings of a link which are the linker's own and not Kafka client properties of its source."""

    fetchers_per_node: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Source fetchers per source broker, as num.replica.fetchers of Kafka; each has one request under "
        "way, so more of them help where the source is far away.",
    )
    partition_fetch_bytes: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=64 << 20,
        description="Most bytes asked for one partition in one source fetch.",
    )
    request_fetch_bytes: int = Field(
        default=8 << 20, ge=1 << 10, le=256 << 20, description="Most bytes asked for in one source fetch."
    )
    replication_bytes_per_second: int = Field(
        default=0,
        ge=0,
        le=1 << 40,
        description="Most bytes read from the source per second, by all sidecars together; 0: no limit. Forwarded writes "
        "are never slowed. It may be changed at any time, without an interruption.",
    )
    replication_bytes_per_second_beside_writes: Rate = Field(
        default=200_000_000,
        description="Most bytes that each sidecar reads for this link from the source per second while clients write "
        "through it, over any link, so that copying gives way to them: 100000 or more; 0: no limit. Twice as much as the "
        "source's log grows by may be read in any case. It may be changed at any time, without an interruption.",
    )
    validation_interval_ms: int | None = Field(
        default=None,
        ge=1000,
        description="Time between two runs of its continuous validation; null: there is none.",
    )

    producer_id_margin: int = Field(
        default=DEFAULT_MARGIN,
        ge=4 * RESERVE,
        le=1_000_000_000,
        description="How many producer ids the source may hand out while the link is there (each start of an idempotent "
        f"producer takes one); {RESERVE} before their end, produces are no longer forwarded. Fixed when the link is made: "
        "the target's ids are moved past the source's by as much (a million took 2.5 to 5.3 s on two busy cores).",
    )
    producer_id_blocks: int = Field(
        default=MOST_BLOCKS,
        ge=1000,
        le=1_000_000_000,
        description=f"By how many blocks of {BLOCK} producer ids, beside those of the margin, the target may be moved past "
        "the source's; a source further ahead is not forwarded to. Each is a record of the target's metadata log.",
    )
    topics_include: Patterns = Field(
        default="",
        description="Source topics that the link mirrors by itself, those that are made later too: regular expressions as "
        "in groups_include, each of a whole name. A name that begins with __ is taken only if it is written as it is. "
        "Empty: none.",
    )
    topics_exclude: Patterns = Field(
        default="", description="Topics that topics_include takes, and that are not mirrored."
    )
    topics_refresh_interval_ms: int = Field(
        default=15_000,
        ge=1000,
        le=3_600_000,
        description="How often the source is asked for new topics, new partitions and deleted topics.",
    )
    topics_deleted: TopicsDeleted = Field(
        default="fail",
        description="The end of the mirror of a topic that was deleted at the source. fail: it is FAILED, its copy "
        "stays; keep: it stays as it is and waits for the same topic; delete: it is deleted with its topic at the target, "
        "once every broker of the source that answers has said so twice.",
    )
    heartbeat_topic: HeartbeatTopic = Field(
        default="",
        description="Name of a heartbeat topic, for example linker-heartbeats. At intervals the link writes a small record "
        "at the source, into the topic of this name, a dot and the source's cluster id, and mirrors it, so that its "
        "readers at the target see that the link lives. Empty: nothing is written.",
    )
    heartbeat_interval_ms: int = Field(
        default=5000, ge=1000, le=3_600_000, description="How often such a record is written."
    )
    heartbeat_retention_ms: int = Field(
        default=86_400_000,
        ge=60_000,
        le=1 << 40,
        description="How long the source keeps these records; set when the sidecar makes the topic.",
    )
    broker_lost_after_ms: int = Field(
        default=1_800_000,
        ge=-1,
        le=604_800_000,
        description="How long a broker of the target may be down before replicas of mirrors on it are copied to other "
        "brokers; -1: for ever. One that is not registered any more is waited for 10 s. Nothing moves while half of the "
        "brokers or more are down.",
    )
    groups_include: Patterns = Field(
        default=".*",
        description="Source groups that are held on the target: regular expressions, comma-separated, each of a whole "
        "group id; a comma inside {}, [] or (), or behind a backslash, is part of its expression. Empty: none.",
    )
    groups_exclude: Patterns = Field(
        default="connect-.*,console-consumer-.*,_.*",
        description="Groups that groups_include takes, and that are not held; they are on their own on the target.",
    )
    groups_sync_interval_ms: int = Field(
        default=1000, ge=100, le=3_600_000, description="How often offsets of held groups are brought over."
    )
    groups_promote: GroupPromotePolicy = Field(
        default="manual",
        description="auto: a group is promoted by itself when it has left the source and waits on the target.",
    )
    groups_gate: GateChoice = Field(
        default="auto", description="The kind of gate that holds groups; auto: chosen for each group."
    )
    unpromoted_reads: ReadsPolicy = Field(
        default="allow",
        description="Whether consumers may read topics through the link before they are promoted: allow or hold. For "
        "clients that neither unpromoted_reads_hold nor unpromoted_reads_allow names.",
    )
    unpromoted_reads_hold: Patterns = Field(
        default="consumer-spark-kafka-.*",
        description="Client ids whose reads are held: those of consumers that keep their offsets themselves. They find a "
        "topic empty until its promote; the status names those that are held.",
    )
    unpromoted_reads_allow: Patterns = Field(
        default="", description="Client ids whose reads are never held; stronger than unpromoted_reads_hold."
    )

    prefix: TopicPrefix = Field(
        default="",
        description="A mirror has this and the name of its source topic as its name, so that one target has room for "
        "several sources. Such mirrors are read-only, no group of the source is held for them, and their promote has to be "
        "told that it makes a topic of the target's own (as_own_topic). It cannot be changed while the link has mirrors.",
    )
    forwarding: Literal["on", "off"] = Field(
        default="on",
        description="off: mirrors are read-only until their promote or failover; a write gets POLICY_VIOLATION, which no "
        "client tries again.",
    )
    join_source: bool = Field(
        default=False,
        description="The sidecars join the source as brokers, too, as the section sources of their configuration says. "
        "Syncing a mirror and switching back and forth need that. It may be changed at any time, without an interruption.",
    )
    topic_config_sync: ConfigSync = Field(
        default="follow",
        description="Changes of topic configs at the source. follow: they are made at the target, and changes that "
        "somebody makes there are put back; report: shown only; off. Configs that would cost records or availability are "
        "put back in any case.",
    )
    topic_config_exclude: ConfigNames = Field(
        default="",
        description="Topic configs whose value is the target's own, for all topics of the link; comma-separated.",
    )
    acl_sync: AclSync = Field(
        default="report",
        description="ACLs of the source: follow: made and removed at the target as well; report: compared only; off.",
    )
    acl_sync_interval_ms: int = Field(
        default=10_000, ge=1000, le=3_600_000, description="How often ACLs of both clusters are compared."
    )
    acl_resources: AclResources = Field(
        default="topic,group,transactional_id",
        description="Kinds of resources whose ACLs are carried; of cluster IdempotentWrite alone.",
    )
    acl_operations: AclOperations = Field(
        default="all", description="Operations whose ACLs are carried, comma-separated; all: every one."
    )
    acl_principals_include: Patterns = Field(
        default=".*",
        description="Principals whose ACLs are carried: regular expressions, each of a whole principal (User:name).",
    )
    acl_principals_exclude: Patterns = Field(
        default="",
        description="Principals that acl_principals_include takes, and whose ACLs are not carried.",
    )
    acl_names_include: Patterns = Field(
        default=".*", description="Names, or prefixes, of the resources whose ACLs are carried."
    )
    acl_names_exclude: Patterns = Field(
        default="", description="Names that acl_names_include takes, and whose ACLs are not carried."
    )
    acl_principals_map: PrincipalRules = Field(
        default="",
        description="Principals that are called otherwise at the target: EXPRESSION=>REPLACEMENT; the first that matches a "
        "whole principal counts. Rules are separated by semicolons; \\1 is the first group of the expression.",
    )


class OptionChanges(Model):
    """Only what is given changes. validation_interval_ms is changed by PATCH /v1/links/{link}/validation."""

    @model_validator(mode="before")
    @classmethod
    def _not_changed_here(cls, given: Any) -> Any:
        if isinstance(given, dict) and "producer_id_margin" in given:
            raise ValueError(
                "producer_id_margin is fixed when a link is made: clients of the target have ids that rely on it"
            )
        if isinstance(given, dict) and "validation_interval_ms" in given:
            raise ValueError(
                "validation_interval_ms is not changed here: linker validate LINK --continuous [--interval 30s] begins a "
                "continuous validation, --stop ends it"
            )
        return given

    def named(self) -> dict[str, Any]:
        """The changes. A field that is null is not named: clients may send all of them."""
        return self.model_dump(exclude_none=True)

    def applied_to(self, options: LinkOptions) -> LinkOptions:
        return options.model_copy(update=self.named())


def _changes_of(options: type[LinkOptions], fixed: frozenset[str]) -> type[OptionChanges]:
    """Every option that is not `fixed`, with its own type and bounds, and null where it stays as it is."""
    fields: dict[str, Any] = {
        name: (Annotated[(field.annotation, Field(), *field.metadata)] | None, None)
        for name, field in options.model_fields.items()
        if name not in fixed
    }
    return create_model(
        "LinkOptionsUpdate",
        __base__=OptionChanges,
        __module__=__name__,
        __doc__=OptionChanges.__doc__,
        **fields,
    )


if TYPE_CHECKING:

    class LinkOptionsUpdate(OptionChanges): ...

else:
    LinkOptionsUpdate = _changes_of(LinkOptions, frozenset({"producer_id_margin", "validation_interval_ms"}))


class CreateLinkRequest(Model):
    name: LinkName
    properties: dict[str, str] = Field(
        description="Kafka client properties of the source: bootstrap.servers, security.protocol, sasl.*, "
        "ssl.*. Secrets by reference: ${env:LINKER_LINK_NAME}, or ${file:/path} below sidecar.links.dir."
    )
    options: LinkOptions = LinkOptions()
    source_cluster_id: str | None = Field(
        default=None, description="Refuse the link if the source has another id."
    )


class UpdateLinkRequest(Model):
    """Changes are merged: a property given as null is removed, one that is not named stays."""

    properties: dict[str, str | None] = {}
    options: LinkOptionsUpdate = LinkOptionsUpdate()

    @model_validator(mode="after")
    def _not_empty(self) -> UpdateLinkRequest:
        if not self.properties and not self.options.model_dump(exclude_none=True):
            raise ValueError("nothing to change: give properties or options")
        return self


class UnmirroredTopic(Model):
    topic: str
    reason: str


class SourceMembership(Model):
    """A sidecar as a broker of a link's source."""

    sidecar: int = Field(description="Its broker id in the target.")
    broker_id: int | None = Field(
        description="Its broker id in the source; null: its configuration has no section for it."
    )
    state: str = Field(
        description="JOINED: registered, unfenced, its listeners open; FENCED; JOINING or LEAVING: tried again and again."
    )
    reason: str | None = Field(default=None, description="Why it has not joined, or left, yet.")
    cordoned: bool = Field(
        default=False, description="Whether the source places no new topic on it: Kafka 4.3 and later."
    )


class LinkSummary(Model):
    name: str
    state: MirrorState
    reason: str | None = None
    source_cluster_id: str
    bootstrap_servers: str
    mirrors: int
    mirror_states: dict[MirrorState, int] = {}
    not_mirrored: list[UnmirroredTopic] = Field(
        default=[], description="Topics that topics_include takes and that cannot be mirrored."
    )
    source_membership: list[SourceMembership] = Field(
        default=[], description="The sidecars as brokers of the source, with join_source."
    )


class LinkDescription(LinkSummary):
    target_cluster_id: str
    properties: dict[str, str] = Field(
        description="Secrets are replaced; references to secrets are shown as they are."
    )
    options: LinkOptions
    forwarding: Forwarding
    traffic: Traffic
    acls: AclSyncStatus | None = None
    created_at: datetime
    source_unavailable_since: datetime | None = None
