"""All numbers of one moment for the metrics page, read from what runs. Nothing is counted here."""

from __future__ import annotations

import time
from collections.abc import Collection

from admin.models import GroupState, MirrorState
from admin.samples import (
    FleetSample,
    GroupsSample,
    LinkBrokerSample,
    LinkSample,
    PartitionSample,
    Snapshot,
    ValidationSample,
)
from controller.phases import ENDED
from fetcher.partition_copy import PartitionCopy
from linker.link_broker import LinkBroker
from linker.links import proved
from linker.links import status as view
from linker.links.runtime import LinkRuntime
from linker.links.traffic import own_traffic
from linker.running import Running
from linker.service.group_status import groups_status
from wire.errors import error_name


def take_snapshot(sidecar: Running, certificate_ends: dict[str, float] | None = None) -> Snapshot:
    """Called at every scrape."""
    jobs = sidecar.controller.image.jobs.values()
    links = _links(sidecar)
    return Snapshot(
        version=sidecar.version,
        brokers=[
            broker_sample(sidecar.broker),
            *(broker_sample(broker, link) for link, broker in sidecar.joined.items()),
        ],
        controller_epoch=sidecar.controller.controller_epoch,
        is_controller=sidecar.controller.is_controller,
        store_commits=sidecar.fleet.store.latency,
        store_failures=sidecar.fleet.store.failures,
        fleet=_fleet(sidecar),
        window_limit_bytes=sidecar.budget.limit,
        partial_cut=sidecar.partial.cut,
        certificate_ends=certificate_ends or {},
        promotes_running=sum(job.ended_at is None for job in jobs),
        promote_phase_seconds={
            (job.link, phase): ms / 1000
            for job in sorted(jobs, key=lambda job: job.id)
            for phase, ms in job.phases_ms.items()
        },
        links=[_link(runtime, sidecar.controller.is_controller) for runtime in links],
        groups=[sample for runtime in links for sample in _groups(runtime)],
        partitions=[sample for runtime in links for sample in _partitions(runtime)],
    )


def _links(sidecar: Running) -> list[LinkRuntime]:
    """Each name once: a link that runs back may still be ending when another link of its name begins."""
    found: dict[str, LinkRuntime] = {}
    for runtime in sidecar.all_links():
        found.setdefault(runtime.name, runtime)
    return list(found.values())


def broker_sample(broker: LinkBroker, cluster: str | None = None) -> LinkBrokerSample:
    """`cluster`: the link whose source it is, None for the target."""
    membership, router, listeners = broker.membership, broker.router, broker.listeners
    age = time.monotonic() - membership.registration.last_heartbeat
    return LinkBrokerSample(
        cluster=cluster,
        heartbeat_age_seconds=None if age == float("inf") else age,
        leading_partitions=sum(
            partition.leader == membership.broker_id
            for topic in membership.image.topics_by_id.values()
            for partition in topic.partitions.values()
        ),
        unknown_answers=router.unknown_answers,
        client_connections=sum(len(listener.connections) for listener in listeners),
        protocol_errors=sum(listener.protocol_errors for listener in listeners),
        refused_connections=sum(listener.refused_connections for listener in listeners),
        unread_bytes=router.hub.unread.used,
        unread_cut=router.hub.unread.cut,
        produce_requests=router.stats.produce_requests,
        produce_answers=router.stats.produce_answered,
        produce_latency=router.stats.produce_latency,
    )


def _fleet(sidecar: Running) -> FleetSample | None:
    fleet = sidecar.fleet
    if fleet.alone:
        return None
    now, lease = fleet.clock(), fleet.member.lease
    sample = FleetSample(lease_seconds=max(0.0, lease.until - now), lease_lapses=lease.lapses(now))
    fleet_controller = fleet.fleet_controller
    if fleet_controller is not None:
        sample.sidecars = len(sidecar.controller.image.identities.keys() | fleet_controller.members.keys())
        sample.sidecars_alive = len(fleet_controller.alive() & fleet_controller.members.keys())
        if (balancer := sidecar.balancer()) is not None:
            sample.moves = balancer.moves_done
            sample.fenced_dead = balancer.fenced_dead
            sample.moving_partitions = len(balancer.moving)
    return sample


def _link(runtime: LinkRuntime, decides: bool) -> LinkSample:
    traffic = own_traffic(runtime)
    stats = runtime.router.stats.links[runtime.name]
    return LinkSample(
        link=runtime.name,
        source_available=runtime.source_available,
        forwarding_enabled=runtime.forwards,
        producer_id_distance=runtime.producer_ids.distance,
        fetched_bytes=traffic.fetched_bytes,
        served_bytes=traffic.served_bytes,
        replication_latency=runtime.fetcher.latency.histogram,
        clamped_latencies=runtime.fetcher.latency.clamped,
        damaged_reads=runtime.events.damaged_reads,
        waited_for_limit=runtime.throttle.rate.waited_for_limit,
        waited_for_writes=runtime.throttle.rate.waited_for_writes,
        forwarded_produces=traffic.forwarded_produces,
        forwarded_bytes=traffic.forwarded_bytes,
        waited_answers=stats.deferred,
        carried_batches=stats.carried,
        forward_errors={error_name(code): count for code, count in stats.errors.items()},
        window_bytes=sum(
            cursor.window.bytes for copy in runtime.fetcher.partitions.values() for cursor in copy.cursors
        ),
        held_reads=stats.held,
        validation=_validation(runtime) if decides else None,
    )


def _validation(runtime: LinkRuntime) -> ValidationSample:
    totals = runtime.validation.totals
    return ValidationSample(
        continuous=runtime.validation.interval is not None,
        runs=totals.runs,
        failed_runs=totals.failed_runs,
        batches=totals.batches,
        bytes=totals.bytes,
        mismatches=totals.mismatches,
        differing_partitions=sum(
            link == runtime.name and known.mismatch is not None
            for (link, _), known in runtime.controller.image.validations.items()
        ),
    )


def _groups(runtime: LinkRuntime) -> list[GroupsSample]:
    """None while another sidecar is the link controller."""
    manager = runtime.groups.manager
    if manager is None:
        return []
    status = groups_status(runtime.controller.image.link_groups(runtime.name), manager)
    stats = manager.stats
    return [
        GroupsSample(
            link=runtime.name,
            states={state.value: status.states.get(state, 0) for state in GroupState},
            gated=status.gated,
            sync_age_seconds=None if status.sync_age_ms is None else status.sync_age_ms / 1000,
            sync_seconds=None if status.sync_ms is None else status.sync_ms / 1000,
            sync_commits=stats.commits,
            sync_offsets=stats.offsets,
            sync_errors=stats.errors,
            gates_lost=stats.gates_lost,
        )
    ]


def _partitions(runtime: LinkRuntime) -> list[PartitionSample]:
    samples = []
    for state in runtime.controller.image.link_partitions(runtime.name):
        if state.phase in ENDED:
            samples.append(
                PartitionSample(
                    link=runtime.name,
                    topic=state.topic,
                    partition=state.partition,
                    state=MirrorState(state.phase.value),
                )
            )
            continue
        lag = view.partition_lag(runtime, state)
        copy = runtime.fetcher.partitions.get(state.tp)
        samples.append(
            PartitionSample(
                link=runtime.name,
                topic=state.topic,
                partition=state.partition,
                state=lag.state,
                source_end_offset=lag.source_end_offset,
                target_end_offset=lag.target_end_offset,
                lag=lag.lag,
                lag_seconds=None if lag.lag_ms is None else lag.lag_ms / 1000,
                record_age_seconds=None
                if copy is None
                else _record_age(copy, lag.lag, runtime.targets(state.tp)),
                copied_bytes=None if copy is None else copy.bytes_mirrored,
                copied_offsets=None if copy is None else copy.offsets_mirrored,
                validated={
                    broker: (through, (age or 0) / 1000)
                    for broker in runtime.targets(state.tp)
                    for through, age in [
                        proved.watermark(runtime.controller.image, state, broker, lag.source_end_offset)
                    ]
                    if through is not None
                },
            )
        )
    return samples


def _record_age(copy: PartitionCopy, lag: int | None, targets: Collection[int]) -> float | None:
    """Of the newest record that the slowest replica has."""
    if not lag:
        return None if lag is None else 0.0
    newest = [copy.followers[broker].newest for broker in targets if broker in copy.followers]
    return max(0.0, time.time() - min(newest) / 1000) if newest and min(newest) >= 0 else None
