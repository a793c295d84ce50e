"""The answers of the admin API as tables for people. Nothing here asks or decides anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from linker.cli import validation_tables
from linker.cli.failover_tables import taken_over
from linker.cli.group_tables import in_one_line
from linker.cli.held_tables import held_readers
from linker.cli.output import columns, duration, one_line, pairs, prose, size
from linker.cli.producer_tables import source_producers
from linker.manual_steps import undo_source_fence

if TYPE_CHECKING:
    from admin.models import (
        AclSyncStatus,
        ChangeResult,
        ControllerDescription,
        FleetStatus,
        Forwarding,
        LagReport,
        LinkDescription,
        LinkSummary,
        MirrorDescription,
        MirrorSummary,
        PromoteJobStatus,
        PromotePlan,
        ReplicaStatus,
        SidecarDescription,
        SidecarStatus,
        Status,
        Traffic,
    )


_MOST_UNPROVED = 10


def change_lines(result: ChangeResult) -> list[str]:
    would = "would " if result.dry_run else ""
    lines = [
        f"{would}{one.action} {one.resource}" + (f": {one.detail}" if one.detail else "")
        for one in result.actions
    ]
    return lines + [f"warning: {warning}" for warning in result.warnings]


def change(result: ChangeResult) -> str:
    lines = change_lines(result)
    if result.dry_run:
        lines.append("nothing was changed (--dry-run)")
    return prose(lines) or "nothing to do"


def links(found: Iterable[LinkSummary]) -> str:
    return columns(
        ("LINK", "STATE", "SOURCE", "BOOTSTRAP", "MIRRORS", "REASON"),
        [
            (one.name, one.state, one.source_cluster_id, one.bootstrap_servers, one.mirrors, one.reason)
            for one in found
        ],
        empty="no links",
    )


def link(one: LinkDescription) -> str:
    head = pairs(
        [
            ("link", one.name),
            ("state", one.state),
            ("reason", one.reason),
            ("source cluster", one.source_cluster_id),
            ("target cluster", one.target_cluster_id),
            ("created", one.created_at.isoformat()),
            (
                "mirrors",
                ", ".join(f"{count} {state}" for state, count in one.mirror_states.items()) or one.mirrors,
            ),
            ("forwarding", forwarding(one.forwarding)),
            (
                "source unavailable",
                one.source_unavailable_since and f"since {one.source_unavailable_since.isoformat()}",
            ),
            ("traffic", traffic(one.traffic)),
            ("acls", one.acls and acls(one.acls)),
            *[(name.replace("_", " "), value) for name, value in one.options.model_dump().items()],
        ]
    )
    properties = columns(("PROPERTY", "VALUE"), sorted(one.properties.items()))
    return f"{head}\n\n{properties}"


def acls(one: AclSyncStatus) -> str:
    told = f"{one.mode}: {one.missing} missing at the target, {one.carried} carried"
    return (
        told
        + (f", {one.left_out} left out" if one.left_out else "")
        + (f"; {one_line(one.trouble)}" if one.trouble else "")
    )


def forwarding(one: Forwarding) -> str:
    return "on" if one.enabled else f"off: {one.reason or 'no reason given'}"


def traffic(one: Traffic) -> str:
    return (
        f"fetched {size(one.fetched_bytes)}, served {size(one.served_bytes)}, "
        f"forwarded {one.forwarded_produces} produces ({size(one.forwarded_bytes)}), "
        f"{one.forward_errors} errors"
    )


def mirrors(found: Iterable[MirrorSummary]) -> str:
    return columns(
        ("LINK", "TOPIC", "STATE", "PARTITIONS", "LAG", "MAX LAG", "TIME LAG", "REASON"),
        [
            (m.link, m.topic, m.state, m.partitions, m.lag, m.max_lag, duration(m.lag_ms), m.reason)
            for m in found
        ],
        empty="no mirrors",
    )


def _at_promote(configs: Mapping[str, str | None]) -> list[str]:
    return [
        f"{key} by the target's default" if value is None else f"{key}={value}"
        for key, value in sorted(configs.items())
    ]


def mirror(one: MirrorDescription) -> str:
    head = pairs(
        [
            ("topic", one.topic),
            ("link", one.link),
            ("state", one.state),
            ("reason", one.reason),
            ("topic id", one.topic_id),
            ("source topic id", one.source_topic_id),
            ("start", one.start),
            ("replication factor", one.replication_factor),
            ("created", one.created_at.isoformat()),
            ("configs", ", ".join(f"{key}={value}" for key, value in sorted(one.configs.items()))),
            ("at a promote", ", ".join(_at_promote(one.configs_at_promote))),
            ("of the target", ", ".join(one.configs_from_target)),
            (
                "put back",
                ", ".join(f"{name} {times} times" for name, times in sorted(one.configs_put_back.items())),
            ),
        ]
    )
    table = columns(
        (
            *("PARTITION", "STATE", "LEADER", "EPOCH", "ISR", "SESSION EPOCH", "CONTROLLER EPOCH", "VERSION"),
            *("SOURCE LEADER", "SOURCE START", "SOURCE END", "TARGET END", "LAG", "TIME LAG", "REPLICAS"),
            *("VALIDATED", "REASON"),
        ),
        [
            (
                *(
                    p.partition,
                    p.state,
                    p.leader,
                    p.leader_epoch,
                    p.isr,
                    p.session_epoch,
                    p.controller_epoch,
                    p.version,
                    p.source_leader,
                    p.source_start_offset,
                ),
                *(p.source_end_offset, p.target_end_offset, p.lag, duration(p.lag_ms)),
                " ".join(
                    f"{replica.broker}@{'-' if replica.end_offset is None else replica.end_offset}"
                    for replica in p.replicas
                ),
                " ".join(_validated(replica) for replica in p.replicas),
                p.mismatch or p.reason,
            )
            for p in one.partition_status
        ],
        empty="no partitions",
    )
    return "\n\n".join([head, *held_readers((one.link, reader) for reader in one.held_readers), table])


def _validated(replica: ReplicaStatus) -> str:
    """`broker<offset`: everything below is proved; with the age if the source has gone on since."""
    if replica.validated_offset is None:
        return f"{replica.broker}<-"
    age = f"({duration(replica.validated_age_ms)})" if replica.validated_age_ms else ""
    late = "" if replica.start_offset is None else f":{replica.start_offset}"
    return f"{replica.broker}{late}<{replica.validated_offset}{age}"


def lag(reports: Iterable[LagReport]) -> str:
    return columns(
        (
            "LINK",
            "TOPIC",
            "PARTITION",
            "STATE",
            "SOURCE START",
            "SOURCE END",
            "TARGET END",
            "LAG",
            "TIME LAG",
            "REASON",
        ),
        [
            (
                *(report.link, p.topic, p.partition, p.state, p.source_start_offset, p.source_end_offset),
                *(p.target_end_offset, p.lag, duration(p.lag_ms), p.reason),
            )
            for report in reports
            for p in report.partitions
        ],
        empty="no mirrors",
    )


def plan(one: PromotePlan) -> str:
    table = columns(
        ("TOPIC", "PARTITIONS", "LAG", "NOTE"), [(t.topic, t.partitions, t.lag, t.reason) for t in one.topics]
    )
    lines = [f"blocked: {line}" for line in one.blockers] + [f"warning: {line}" for line in one.warnings]
    lines += [f"config: {line}" for line in one.configs]
    parts = [table, prose(lines)] if lines else [table]
    lines = []
    if one.producers:
        parts.append(source_producers(one.producers))
    if one.validation != "skip":
        lines += [
            f"to be validated first ({one.validation}): {line}" for line in one.unproved[:_MOST_UNPROVED]
        ]
        more = len(one.unproved) - _MOST_UNPROVED
        lines += [f"... and {more} more partitions"] if more > 0 else []
    end = "a promote would be refused now" if one.blockers else "a promote could start now"
    if one.warnings and not one.blockers:
        end += ", with what is warned of above"
    return "\n".join([*parts, prose([*lines, f"{end}; nothing was changed (--dry-run)"])])


def job(one: PromoteJobStatus) -> str:
    # After an abandoned one it was opened, and is looked after for a while.
    fenced = "source may refuse writes to" if one.phase == "ABANDONED" else "source refuses writes to"
    head = pairs(
        [
            ("promote", one.id),
            ("link", one.link),
            ("phase", one.phase),
            ("reason", one.reason),
            ("started", one.started_at.isoformat()),
            ("finished", one.finished_at and one.finished_at.isoformat()),
            ("time", ", ".join(f"{phase} {duration(spent)}" for phase, spent in one.phases_ms.items())),
            *validation_tables.promote_lines(one.validation),
            *(("warning", line) for line in one.warnings),
            *((fenced, topic) for topic in one.source_fenced),
            *([("that is undone with", undo_source_fence(one.source_fenced))] if one.source_fenced else []),
        ]
    )
    table = columns(
        ("TOPIC", "PHASE", "PARTITIONS", "LAG", "REASON"),
        [(t.topic, t.phase, t.partitions, t.lag, t.reason) for t in one.topics],
    )
    parts = [head, table]
    if one.failover is not None:
        parts.append(taken_over(one.failover))
    return "\n\n".join(parts)


def sidecars(found: Iterable[SidecarStatus]) -> str:
    return columns(
        (
            *("ID", "STATE", "VERSION", "RACK", "CONTROLLER", "LEADING", "IN ISR", "LEASE LEFT", "HEARD"),
            *("HEARTBEAT", "LISTENERS", "REASON"),
        ),
        [
            (
                *(s.id, s.state, s.version, s.rack, s.controller, s.leading_partitions, s.isr_partitions),
                *(lease(s.lease_ms), _ago(s.last_heard_ms), _ago(s.heartbeat_age_ms)),
                *(s.advertised_listeners, s.reason),
            )
            for s in found
        ],
        empty="no sidecars",
    )


def lease(milliseconds: int | None) -> str:
    return "endless" if milliseconds is None else "over" if milliseconds == 0 else f"{milliseconds} ms"


def _ago(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else f"{duration(milliseconds)} ago"


def departing(one: SidecarDescription) -> str:
    if one.staying_partitions:
        return f"sidecar {one.id} still leads {one.staying_partitions} partitions"
    return f"sidecar {one.id} leads nothing; it stays drained until it is started anew, or until --undo"


def controller(one: ControllerDescription) -> str:
    waiting = [
        f"{w.command} of {w.partitions} partitions of link {w.link}: sidecars {', '.join(map(str, w.sidecars))}"
        for w in one.waiting
    ]
    head = pairs(
        [
            ("link controller", f"sidecar {one.id}"),
            ("controller epoch", one.controller_epoch),
            ("since", one.since.isoformat(timespec="seconds")),
            ("store", one.store),
            ("lease", "endless" if one.lease_ms is None else duration(one.lease_ms)),
            ("sidecars connect to", one.control),
            ("admin API", one.admin),
            ("sidecars", f"{one.sidecars_alive} of {one.sidecars} alive"),
            ("promotes", ", ".join(one.promotes)),
            ("waits for", "; ".join(waiting)),
        ]
    )
    parts = [
        head,
        columns(
            ("SIDECAR", "ADDRESS", "VERSION", "SESSION", "CONNECTED", "HEARD", "LEASE LEFT"),
            [
                (
                    *(m.id, m.address, m.version, m.session[:8], duration(m.connected_ms)),
                    *(_ago(m.last_heard_ms), lease(m.lease_ms)),
                )
                for m in one.members
            ],
            empty="no sidecar is connected",
        ),
    ]
    if one.away:
        parts.append(
            columns(
                ("AWAY, WITH A LEASE", "SESSION", "LEASE LEFT"),
                [(a.id, a.session[:8], lease(a.lease_ms)) for a in one.away],
            )
        )
    if one.moving:
        parts.append(
            columns(("TOPIC", "PARTITION", "MOVING"), [(p.topic, p.partition, p.change) for p in one.moving])
        )
    if one.trouble:
        parts.append(columns(("TROUBLE", "REASON"), [(t.what, t.reason) for t in one.trouble]))
    return "\n\n".join(parts)


def fleet(one: FleetStatus) -> str:
    parts = [
        f"{one.sidecars_alive} of {one.sidecars} sidecars alive",
        f"controller {one.controller} (epoch {one.controller_epoch})",
    ]
    if one.away:
        parts.append(f"away: {', '.join(map(str, one.away))}")
    if one.draining:
        parts.append(f"draining: {', '.join(map(str, one.draining))}")
    parts.append(f"{one.moving_partitions} partitions moving")
    if one.trouble:
        parts.append(f"{one.trouble} troubles (linker controller describe)")
    return ", ".join(parts)


def status(one: Status) -> str:
    head = pairs(
        [
            ("state", one.state),
            ("sidecar", f"{one.sidecar.id} ({one.sidecar.state}, version {one.version})"),
            *([] if one.fleet is None else [("fleet", fleet(one.fleet))]),
            ("target cluster", one.target_cluster_id),
            ("leading", f"{one.sidecar.leading_partitions} partitions"),
            ("windows", f"{size(one.window_bytes)} of {size(one.window_limit_bytes)}"),
        ]
    )
    linked = columns(
        ("LINK", "STATE", "MIRRORS", "PARTITIONS", "LAG", "TIME LAG", "FORWARDING", "FORWARDED", "REASON"),
        [
            (
                *(
                    s.name,
                    s.state,
                    s.mirrors,
                    s.partitions,
                    s.lag,
                    duration(s.lag_ms),
                    forwarding(s.forwarding),
                ),
                *(s.traffic.forwarded_produces, s.reason),
            )
            for s in one.links
        ],
        empty="no links",
    )
    parts = [head, linked]
    if any(not task.well for task in one.tasks):
        parts.append(prose(f"warning: {task.trouble}" for task in one.tasks if not task.well))
    if any(s.groups.groups or s.groups.reason for s in one.links):
        parts.append(columns(("LINK", "GROUPS"), [(s.name, in_one_line(s.groups)) for s in one.links]))
    parts += held_readers((s.name, reader) for s in one.links for reader in s.held_readers)
    parts += [
        f"validation of {one_line(s.name)}: {validation_tables.summary(s.validation)}"
        for s in one.links
        if s.validation is not None and (s.validation.continuous or s.validation.mismatches)
    ]
    found = [mirror for s in one.links for mirror in s.mirror_list]
    if found:
        parts.append(mirrors(found))
    parts += [job(running) for running in one.promotes]
    return "\n\n".join(parts)
