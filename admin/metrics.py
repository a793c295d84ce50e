"""Prometheus metrics. The hot path only bumps plain ints; they are read here, once per scrape.

`Metrics(snapshot)` takes a function that returns the numbers of this moment. Nothing is cached between scrapes, so that
a partition that is gone leaves the page too. CATALOGUE has the names and labels; the reference page is generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from admin.samples import LinkBrokerSample, LinkSample, Snapshot
from controller.plan.producer_ids import RESERVE
from wire.histogram import LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Entry(NamedTuple):
    kind: str
    help: str
    labels: tuple[str, ...] = ()


_PARTITION = ("link", "topic", "partition")
_REPLICA = (*_PARTITION, "replica")

#: Every metric there is. Counters get `_total` appended on the page.
CATALOGUE: dict[str, Entry] = {
    "linker_build_info": Entry("gauge", "Always 1; the version is in the label.", ("version",)),
    "linker_heartbeat_age_seconds": Entry(
        "gauge", "Time since the cluster's controller last took a heartbeat."
    ),
    "linker_controller_epoch": Entry("gauge", "Epoch of the link controller."),
    "linker_is_controller": Entry("gauge", "1 if this sidecar is the link controller."),
    "linker_leading_partitions": Entry("gauge", "Partitions of the cluster that this sidecar leads."),
    "linker_lease_seconds": Entry(
        "gauge", "The rest of this sidecar's lease; without one it acknowledges nothing. Only in a fleet."
    ),
    "linker_lease_lapses": Entry(
        "counter", "How often this sidecar's lease ended unrenewed. Only in a fleet."
    ),
    "linker_lease_waits": Entry(
        "counter",
        "Forwarded produces that the source had taken and whose answers waited for the lease.",
        ("link",),
    ),
    "linker_carried_batches": Entry(
        "counter",
        "Batches that a new leader of the target acknowledged through the sidecar, right after a hand-over.",
        ("link",),
    ),
    "linker_unknown_answers": Entry(
        "counter", "Writes that the source had taken, but that clients were told to be of unknown outcome."
    ),
    "linker_sidecars": Entry("gauge", "Sidecars of the fleet. Only on the link controller."),
    "linker_sidecars_alive": Entry(
        "gauge", "Sidecars that the link controller hears of. Only on the link controller."
    ),
    "linker_moving_partitions": Entry(
        "gauge", "Partitions that get another leader or link broker just now. Only on the link controller."
    ),
    "linker_leader_moves": Entry("counter", "Planned changes of leader. Only on the link controller."),
    "linker_fenced_dead": Entry(
        "counter", "Brokers of dead sidecars that were fenced. Only on the link controller."
    ),
    "linker_store_commit_seconds": Entry(
        "histogram",
        "Commits to the state store, proofs of leases included. Only the link controller commits.",
    ),
    "linker_store_commit_failures": Entry("counter", "Commits that failed or were not answered in time."),
    "linker_window_limit_bytes": Entry("gauge", "Budget of all read-ahead windows."),
    "linker_client_connections": Entry("gauge", "Open connections of clients and followers."),
    "linker_protocol_errors": Entry(
        "counter", "Connections closed because their bytes were not the protocol."
    ),
    "linker_refused_connections": Entry(
        "counter",
        "Connections closed because there were too many of them, of one address or of all, or because they did not log in "
        "in time, or read nothing for ten minutes.",
    ),
    "linker_partial_cut": Entry(
        "counter",
        "Connections cut off because their request did not come while others needed the memory that it takes.",
    ),
    "linker_certificate_expiry_seconds": Entry(
        "gauge",
        "When the sidecar's own certificate ends, the first of its chain, in seconds since 1970: of a listener, of control, "
        "or of the one that it shows the target.",
        ("of",),
    ),
    "linker_unread_bytes": Entry("gauge", "Answers to consumers that they have not taken yet."),
    "linker_unread_cut": Entry(
        "counter",
        "Consumers cut off because they read nothing while others needed the memory of their answers.",
    ),
    "linker_produce_requests": Entry("counter", "Produce requests that clients sent."),
    "linker_produce_answers": Entry("counter", "Produce requests that were answered."),
    "linker_produce_answer_seconds": Entry(
        "counter", "Time from the arrival of answered produce requests to their answers, in sum."
    ),
    "linker_produce_latency_seconds": Entry(
        "histogram",
        "Time from the arrival of a produce request to its answer, the way to the source and back included.",
    ),
    "linker_promotes_running": Entry("gauge", "Promotes that are not finished."),
    "linker_promote_phase_seconds": Entry(
        "gauge", "Time that the last promote of the link spent in a phase.", ("link", "phase")
    ),
    "linker_source_available": Entry("gauge", "1 if the source answers.", ("link",)),
    "linker_forwarding_enabled": Entry("gauge", "1 if produces are forwarded to the source.", ("link",)),
    "linker_producer_id_distance": Entry(
        "gauge",
        f"Producer ids that the source is away from those of the target; below {RESERVE} produces are not forwarded.",
        ("link",),
    ),
    "linker_fetched_bytes": Entry("counter", "Bytes of batches fetched from the source.", ("link",)),
    "linker_served_bytes": Entry("counter", "Bytes of batches served to followers and consumers.", ("link",)),
    "linker_replication_latency_seconds": Entry(
        "histogram",
        "Time from the timestamp of a record to the fetch that shows that a target replica has it, of the last batch of "
        "each answer; without the first copy of a topic.",
        ("link",),
    ),
    "linker_replication_latency_clamped": Entry(
        "counter",
        "Records of linker_replication_latency_seconds with a timestamp from the future, which count as 0: this machine's "
        "clock is behind.",
        ("link",),
    ),
    "linker_damaged_reads": Entry(
        "counter",
        "Answers of the source with records whose checksum is not that of their bytes, as a follower found; read again.",
        ("link",),
    ),
    "linker_fetches_put_off_seconds": Entry(
        "counter",
        "Seconds that fetches of the source were put off, by all fetchers together: for the link's limit, or for writes.",
        ("link", "for"),
    ),
    "linker_forwarded_produces": Entry(
        "counter", "Produce requests sent to the source, those that had to be sent again included.", ("link",)
    ),
    "linker_forwarded_bytes": Entry("counter", "Bytes of batches forwarded to the source.", ("link",)),
    "linker_forward_errors": Entry(
        "counter", "Batches for mirrors that a client got an error for.", ("link", "error")
    ),
    "linker_window_bytes": Entry("gauge", "Memory held by read-ahead windows.", ("link",)),
    "linker_validation_continuous": Entry(
        "gauge", "1 if the link is validated continuously. Only on the link controller.", ("link",)
    ),
    "linker_validation_runs": Entry(
        "counter", "Runs of the validator. Only on the link controller.", ("link",)
    ),
    "linker_validation_failed_runs": Entry(
        "counter", "Runs of the validator that could not be finished. Only on the link controller.", ("link",)
    ),
    "linker_validated_batches": Entry(
        "counter", "Batches of replicas that were compared. Only on the link controller.", ("link",)
    ),
    "linker_validated_bytes": Entry(
        "counter", "Bytes of replicas that were compared. Only on the link controller.", ("link",)
    ),
    "linker_validation_mismatches": Entry(
        "counter", "Replicas that were found to differ. Only on the link controller.", ("link",)
    ),
    "linker_validation_differing_partitions": Entry(
        "gauge", "Partitions with a replica that differs from the source.", ("link",)
    ),
    "linker_replica_validated_offset": Entry(
        "gauge", "Everything below it is proved equal to the source.", _REPLICA
    ),
    "linker_replica_validation_age_seconds": Entry(
        "gauge", "Time since that offset was proved, if the source has gone on since; else 0.", _REPLICA
    ),
    "linker_held_reads": Entry(
        "counter",
        "Partitions of fetches answered without records until their promote (unpromoted_reads).",
        ("link",),
    ),
    "linker_groups": Entry(
        "gauge",
        "Consumer groups by state; EXCLUDED are not mirrored. Groups' metrics are only on the link controller.",
        ("link", "state"),
    ),
    "linker_gated_groups": Entry("gauge", "Groups whose gate on the target is closed.", ("link",)),
    "linker_group_sync_age_seconds": Entry(
        "gauge",
        "Time since the target had all offsets of the source, of the held group where that is longest.",
        ("link",),
    ),
    "linker_group_sync_seconds": Entry("gauge", "How long the newest round of the sync took.", ("link",)),
    "linker_group_sync_commits": Entry("counter", "Commits made for groups on the target.", ("link",)),
    "linker_group_sync_offsets": Entry(
        "counter", "Offsets in the commits made for groups, one of each partition.", ("link",)
    ),
    "linker_group_sync_errors": Entry("counter", "Reads and commits of groups that failed.", ("link",)),
    "linker_group_gates_lost": Entry(
        "counter", "Gates that held no longer when they were renewed or used.", ("link",)
    ),
    "linker_partition_source_end_offset": Entry("gauge", "High watermark at the source.", _PARTITION),
    "linker_partition_target_end_offset": Entry(
        "gauge", "Smallest log end of the target's replicas.", _PARTITION
    ),
    "linker_partition_lag": Entry("gauge", "Offsets that the slowest target replica is behind.", _PARTITION),
    "linker_partition_lag_seconds": Entry(
        "gauge", "For how long the slowest target replica has been behind.", _PARTITION
    ),
    "linker_partition_record_age_seconds": Entry(
        "gauge",
        "Age of the newest record that the slowest target replica has, 0 if it lacks none. On the sidecar that leads it.",
        _PARTITION,
    ),
    "linker_partition_copied_bytes": Entry(
        "counter",
        "Bytes of the batches read from the source, each once. On the sidecar that leads it.",
        _PARTITION,
    ),
    "linker_partition_copied_offsets": Entry(
        "counter",
        "Offsets of the batches read from the source: records, and those that compaction has taken out. On the sidecar that "
        "leads it.",
        _PARTITION,
    ),
    "linker_partition_state": Entry(
        "gauge", "1 for the state that the partition is in; the others have no line.", (*_PARTITION, "state")
    ),
}


class Metrics:
    """The registry behind /metrics. Use `render()`."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_SnapshotCollector(snapshot))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        return []  # registering must not take a snapshot: the sidecar may not be up yet

    def collect(self) -> Iterable[Metric]:
        page = _Page()
        _fill(page, self._snapshot())
        return page.families.values()


class _Page:
    def __init__(self) -> None:
        self.families: dict[str, Metric] = {}

    def add(self, name: str, value: float | None, *labels: str, cluster: str | None = None) -> None:
        if value is None:
            return
        entry = CATALOGUE[name]
        family = self.families.get(name)
        if family is None:
            kind = CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily
            family = self.families[name] = kind(name, entry.help, labels=entry.labels)
        if isinstance(family, (CounterMetricFamily, GaugeMetricFamily)):
            family.add_metric(labels, value)
            if cluster is not None:
                last = family.samples[-1]
                family.samples[-1] = last._replace(labels={**last.labels, "cluster": cluster})

    def histogram(
        self, name: str, histogram: LatencyHistogram | None, *labels: str, cluster: str | None = None
    ) -> None:
        if histogram is None:
            return
        entry = CATALOGUE[name]
        family = self.families.setdefault(name, HistogramMetricFamily(name, entry.help, labels=entry.labels))
        if isinstance(family, HistogramMetricFamily):
            before = len(family.samples)
            family.add_metric(labels, histogram.cumulative(), histogram.total_seconds)
            if cluster is not None:
                family.samples[before:] = [
                    one._replace(labels={**one.labels, "cluster": cluster}) for one in family.samples[before:]
                ]


def _fill(page: _Page, now: Snapshot) -> None:
    page.add("linker_build_info", 1, now.version)
    for one in now.brokers:
        _broker(page, one)
    page.add("linker_controller_epoch", now.controller_epoch)
    page.add("linker_is_controller", None if now.is_controller is None else int(now.is_controller))
    page.histogram("linker_store_commit_seconds", now.store_commits)
    page.add("linker_store_commit_failures", now.store_failures)
    if now.fleet is not None:
        page.add("linker_lease_seconds", now.fleet.lease_seconds)
        page.add("linker_lease_lapses", now.fleet.lease_lapses)
        page.add("linker_sidecars", now.fleet.sidecars)
        page.add("linker_sidecars_alive", now.fleet.sidecars_alive)
        page.add("linker_moving_partitions", now.fleet.moving_partitions)
        page.add("linker_leader_moves", now.fleet.moves)
        page.add("linker_fenced_dead", now.fleet.fenced_dead)
    page.add("linker_window_limit_bytes", now.window_limit_bytes)
    page.add("linker_partial_cut", now.partial_cut)
    for of, end in now.certificate_ends.items():
        page.add("linker_certificate_expiry_seconds", end, of)
    page.add("linker_promotes_running", now.promotes_running)
    for (name, phase), seconds in now.promote_phase_seconds.items():
        page.add("linker_promote_phase_seconds", seconds, name, phase)
    for link in now.links:
        page.add("linker_source_available", int(link.source_available), link.link)
        page.add("linker_forwarding_enabled", int(link.forwarding_enabled), link.link)
        if link.producer_id_distance is not None:
            page.add("linker_producer_id_distance", link.producer_id_distance, link.link)
        page.add("linker_fetched_bytes", link.fetched_bytes, link.link)
        page.add("linker_served_bytes", link.served_bytes, link.link)
        page.histogram("linker_replication_latency_seconds", link.replication_latency, link.link)
        page.add("linker_replication_latency_clamped", link.clamped_latencies, link.link)
        page.add("linker_damaged_reads", link.damaged_reads, link.link)
        page.add("linker_fetches_put_off_seconds", link.waited_for_limit, link.link, "limit")
        page.add("linker_fetches_put_off_seconds", link.waited_for_writes, link.link, "writes")
        page.add("linker_forwarded_produces", link.forwarded_produces, link.link)
        page.add("linker_forwarded_bytes", link.forwarded_bytes, link.link)
        page.add("linker_lease_waits", link.waited_answers, link.link)
        page.add("linker_carried_batches", link.carried_batches, link.link)
        for error, count in link.forward_errors.items():
            page.add("linker_forward_errors", count, link.link, error)
        page.add("linker_window_bytes", link.window_bytes, link.link)
        _validation(page, link)
        page.add("linker_held_reads", link.held_reads, link.link)
    for groups in now.groups:
        for state, count in groups.states.items():
            page.add("linker_groups", count, groups.link, state)
        page.add("linker_gated_groups", groups.gated, groups.link)
        page.add("linker_group_sync_age_seconds", groups.sync_age_seconds, groups.link)
        page.add("linker_group_sync_seconds", groups.sync_seconds, groups.link)
        page.add("linker_group_sync_commits", groups.sync_commits, groups.link)
        page.add("linker_group_sync_offsets", groups.sync_offsets, groups.link)
        page.add("linker_group_sync_errors", groups.sync_errors, groups.link)
        page.add("linker_group_gates_lost", groups.gates_lost, groups.link)
    for sample in now.partitions:
        labels = (sample.link, sample.topic, str(sample.partition))
        page.add("linker_partition_source_end_offset", sample.source_end_offset, *labels)
        page.add("linker_partition_target_end_offset", sample.target_end_offset, *labels)
        page.add("linker_partition_lag", sample.lag, *labels)
        page.add("linker_partition_lag_seconds", sample.lag_seconds, *labels)
        page.add("linker_partition_record_age_seconds", sample.record_age_seconds, *labels)
        page.add("linker_partition_copied_bytes", sample.copied_bytes, *labels)
        page.add("linker_partition_copied_offsets", sample.copied_offsets, *labels)
        page.add("linker_partition_state", 1, *labels, sample.state.value)
        for broker, (through, age) in sample.validated.items():
            page.add("linker_replica_validated_offset", through, *labels, str(broker))
            page.add("linker_replica_validation_age_seconds", age, *labels, str(broker))


def _broker(page: _Page, now: LinkBrokerSample) -> None:
    for name, value in (
        ("linker_heartbeat_age_seconds", now.heartbeat_age_seconds),
        ("linker_leading_partitions", now.leading_partitions),
        ("linker_unknown_answers", now.unknown_answers),
        ("linker_client_connections", now.client_connections),
        ("linker_protocol_errors", now.protocol_errors),
        ("linker_refused_connections", now.refused_connections),
        ("linker_unread_bytes", now.unread_bytes),
        ("linker_unread_cut", now.unread_cut),
        ("linker_produce_requests", now.produce_requests),
        ("linker_produce_answers", now.produce_answers),
        (
            "linker_produce_answer_seconds",
            None if now.produce_latency is None else now.produce_latency.total_seconds,
        ),
    ):
        page.add(name, value, cluster=now.cluster)
    page.histogram("linker_produce_latency_seconds", now.produce_latency, cluster=now.cluster)


def _validation(page: _Page, link: LinkSample) -> None:
    now = link.validation
    if now is None:
        return
    page.add("linker_validation_continuous", int(now.continuous), link.link)
    page.add("linker_validation_runs", now.runs, link.link)
    page.add("linker_validation_failed_runs", now.failed_runs, link.link)
    page.add("linker_validated_batches", now.batches, link.link)
    page.add("linker_validated_bytes", now.bytes, link.link)
    page.add("linker_validation_mismatches", now.mismatches, link.link)
    page.add("linker_validation_differing_partitions", now.differing_partitions, link.link)
