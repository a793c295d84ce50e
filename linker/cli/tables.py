"""Links, mirrors and the status as tables for people. Nothing here asks or decides anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from linker.cli import validation_tables
from linker.cli.fleet_tables import fleet
from linker.cli.group_tables import in_one_line
from linker.cli.output import columns, duration, one_line, pairs, prose, size
from linker.cli.promote_tables import job

if TYPE_CHECKING:
    from admin.models import (
        AclSyncStatus,
        ChangeResult,
        ClientLeft,
        Forwarding,
        HeldReader,
        LagReport,
        LinkDescription,
        LinkSummary,
        MirrorDescription,
        MirrorSummary,
        PartitionStatus,
        RemainingCopy,
        ReplicaStatus,
        SourceMembership,
        Status,
        Traffic,
    )


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
            *[("joined source", membership(found)) for found in one.source_membership],
            *[(name.replace("_", " "), value) for name, value in one.options.model_dump().items()],
        ]
    )
    properties = columns(("PROPERTY", "VALUE"), sorted(one.properties.items()))
    return f"{head}\n\n{properties}"


def membership(one: SourceMembership) -> str:
    where = "no broker id" if one.broker_id is None else f"broker {one.broker_id}"
    told = f"sidecar {one.sidecar} as {where}: {one.state}"
    return one_line(told + (f": {one.reason}" if one.reason else ""))


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
    rows = list(found)
    renamed = any(m.source_topic for m in rows)
    switched = any(m.sync is not None or m.direction == "REVERSED" for m in rows)
    return columns(
        (
            *("LINK", "TOPIC", *(("SOURCE TOPIC",) if renamed else ())),
            *(("DIRECTION", "SYNC") if switched else ()),
            *("STATE", "PARTITIONS", "LAG", "MAX LAG", "TIME LAG", "ETA", "REASON"),
        ),
        [
            (
                *(m.link, m.topic, *((m.source_topic or m.topic,) if renamed else ())),
                *((m.direction, m.sync) if switched else ()),
                *(m.state, m.partitions, m.lag, m.max_lag),
                *(duration(m.lag_ms), eta(m.copying), m.reason),
            )
            for m in rows
        ],
        empty="no mirrors",
    )


def eta(copying: RemainingCopy | None) -> str | None:
    """How long a copy will still take."""
    if copying is None:
        return None
    return "unknown" if copying.eta_ms is None else duration(copying.eta_ms)


def not_mirrored(links: Iterable[LinkSummary]) -> list[str]:
    """Topics that links would mirror by themselves, and cannot; no table where there are none."""
    rows = [(one.name, topic.topic, topic.reason) for one in links for topic in one.not_mirrored]
    return [columns(("LINK", "NOT MIRRORED", "REASON"), rows)] if rows else []


def _at_promote(configs: Mapping[str, str | None]) -> list[str]:
    return [
        f"{key} by the target's default" if value is None else f"{key}={value}"
        for key, value in sorted(configs.items())
    ]


def mirror(one: MirrorDescription) -> str:
    head = pairs(
        [
            ("topic", one.topic),
            ("source topic", one.source_topic),
            ("link", one.link),
            ("direction", one.direction if one.direction == "REVERSED" else None),
            ("sync", one.sync),
            ("state", one.state),
            ("reason", one.reason),
            ("copied in", eta(one.copying)),
            ("topic id", one.topic_id),
            ("source topic id", one.source_topic_id),
            ("start", one.start),
            ("replication factor", one.replication_factor),
            ("created", one.created_at.isoformat()),
            ("configs", ", ".join(f"{key}={value}" for key, value in sorted(one.configs.items()))),
            ("at a promote", ", ".join(_at_promote(one.configs_at_promote))),
            ("of the target", ", ".join(one.configs_from_target)),
            ("came through clusters", " -> ".join(one.upstream)),
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
                    _source_leader(p),
                    p.source_start_offset,
                ),
                *(p.source_end_offset, p.target_end_offset, p.lag, duration(p.lag_ms)),
                " ".join(
                    f"{replica.broker}@{'-' if replica.end_offset is None else replica.end_offset}"
                    + (" (leaves)" if replica.leaving else "")
                    for replica in p.replicas
                ),
                " ".join(_validated(replica) for replica in p.replicas if not replica.leaving),
                p.mismatch or p.reason,
            )
            for p in one.partition_status
        ],
        empty="no partitions",
    )
    held = held_readers((one.link, reader) for reader in one.held_readers)
    left = clients_left((one.link, client) for client in one.clients_left)
    return "\n\n".join([head, *held, *left, table])


def _source_leader(partition: PartitionStatus) -> str:
    elsewhere = [one for one in partition.read_from if one != partition.source_leader]
    read = f" (read from {' '.join(map(str, elsewhere))})" if elsewhere else ""
    return f"{'-' if partition.source_leader is None else partition.source_leader}{read}"


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


def held_readers(found: Iterable[tuple[str, HeldReader]]) -> list[str]:
    """By link; nothing at all where nobody is held."""
    rows = [
        (link, one.topic, one.client_id or "-", one.host, one.since.isoformat(timespec="seconds"))
        for link, one in found
    ]
    if not rows:
        return []
    return [columns(("LINK", "TOPIC", "HELD CLIENT (FINDS IT EMPTY)", "HOST", "SINCE"), rows)]


def clients_left(found: Iterable[tuple[str, ClientLeft]]) -> list[str]:
    """By link; nothing at all where nobody is left."""
    rows = [
        (
            link,
            one.topic,
            one.client_id or "-",
            one.host,
            one.does,
            one.last_request.isoformat(timespec="seconds"),
        )
        for link, one in found
    ]
    if not rows:
        return []
    return [columns(("LINK", "TOPIC", "CLIENT LEFT AT THE SOURCE", "HOST", "DOES", "LAST REQUEST"), rows)]


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
        (
            "LINK",
            "STATE",
            "MIRRORS",
            "PARTITIONS",
            "LAG",
            "TIME LAG",
            "ETA",
            "FORWARDING",
            "FORWARDED",
            "REASON",
        ),
        [
            (
                *(
                    s.name,
                    s.state,
                    s.mirrors,
                    s.partitions,
                    s.lag,
                    duration(s.lag_ms),
                    eta(s.copying),
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
    if any(s.source_membership for s in one.links):
        rows = [(s.name, membership(found)) for s in one.links for found in s.source_membership]
        parts.append(columns(("LINK", "AT THE SOURCE"), rows))
    parts += held_readers((s.name, reader) for s in one.links for reader in s.held_readers)
    parts += clients_left((s.name, client) for s in one.links for client in s.clients_left)
    parts += [
        f"validation of {one_line(s.name)}: {validation_tables.summary(s.validation)}"
        for s in one.links
        if s.validation is not None and (s.validation.continuous or s.validation.mismatches)
    ]
    found = [mirror for s in one.links for mirror in s.mirror_list]
    if found:
        parts.append(mirrors(found))
    parts += not_mirrored(one.links)
    parts += [job(running) for running in one.promotes]
    return "\n\n".join(parts)
