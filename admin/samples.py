"""The numbers of one moment for the metrics page; metrics.py prints them. No import of Prometheus here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from admin.models import MirrorState
from wire.histogram import LatencyHistogram


@dataclass(slots=True, kw_only=True)
class PartitionSample:
    """Unknown numbers are None and leave no line on the page."""

    link: str
    topic: str
    partition: int
    state: MirrorState
    source_end_offset: int | None = None
    target_end_offset: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    record_age_seconds: float | None = None
    copied_bytes: int | None = None
    copied_offsets: int | None = None
    #: broker id -> (everything below is proved, seconds since that)
    validated: Mapping[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ValidationSample:
    """The validation of a link, as the link controller counts it."""

    continuous: bool
    runs: int
    failed_runs: int
    batches: int
    bytes: int
    mismatches: int
    differing_partitions: int


@dataclass(slots=True, kw_only=True)
class LinkSample:
    link: str
    source_available: bool
    forwarding_enabled: bool
    producer_id_distance: int | None = None
    fetched_bytes: int = 0
    served_bytes: int = 0
    damaged_reads: int = 0
    waited_for_limit: float = 0.0  # seconds, of each fetcher
    waited_for_writes: float = 0.0
    forwarded_produces: int = 0
    forwarded_bytes: int = 0
    waited_answers: int = 0
    carried_batches: int = 0
    forward_errors: Mapping[str, int] = field(default_factory=dict)  # Kafka error name -> produces
    window_bytes: int = 0
    replication_latency: LatencyHistogram | None = None
    clamped_latencies: int = 0
    validation: ValidationSample | None = None  # None: another sidecar decides
    held_reads: int = 0


@dataclass(slots=True, kw_only=True)
class GroupsSample:
    """Consumer groups of a link; only on the link controller."""

    link: str
    states: Mapping[str, int]  # all states, also those without a group
    gated: int
    sync_age_seconds: float | None
    sync_seconds: float | None
    sync_commits: int
    sync_offsets: int
    sync_errors: int
    gates_lost: int


@dataclass(slots=True, kw_only=True)
class FleetSample:
    """The counts of a sidecar of a fleet; the second half only while it is the link controller."""

    lease_seconds: float  # until the lease ends; 0: it has ended
    lease_lapses: int
    sidecars: int | None = None
    sidecars_alive: int | None = None
    moves: int | None = None
    fenced_dead: int | None = None
    moving_partitions: int | None = None


@dataclass(slots=True, kw_only=True)
class LinkBrokerSample:
    """The sidecar as a broker of one cluster."""

    #: A label for every cluster but the target, so that no two series have one name: the link whose source it is.
    cluster: str | None = None
    heartbeat_age_seconds: float | None = None
    leading_partitions: int = 0
    unknown_answers: int = 0
    client_connections: int = 0
    protocol_errors: int = 0
    refused_connections: int = 0
    unread_bytes: int = 0
    unread_cut: int = 0
    produce_requests: int = 0
    produce_answers: int = 0
    produce_latency: LatencyHistogram | None = None  # from arrival to answer


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """All numbers of one moment."""

    version: str
    #: The target's first.
    brokers: list[LinkBrokerSample] = field(default_factory=list)
    controller_epoch: int | None = None
    window_limit_bytes: int | None = None
    partial_cut: int = 0
    #: Of the certificates that this sidecar shows: when they end, in seconds since 1970, by who sees them.
    certificate_ends: dict[str, float] = field(default_factory=dict)
    is_controller: bool | None = None
    store_commits: LatencyHistogram | None = None
    store_failures: int | None = None
    fleet: FleetSample | None = None
    promotes_running: int = 0
    #: (link, phase) -> seconds the last promote of that link spent in it
    promote_phase_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    links: list[LinkSample] = field(default_factory=list)
    groups: list[GroupsSample] = field(default_factory=list)
    partitions: list[PartitionSample] = field(default_factory=list)
