"""Sidecars and their link controller, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.output import columns, duration, pairs

if TYPE_CHECKING:
    from admin.models import (
        ControllerDescription,
        FleetStatus,
        SidecarDescription,
        SidecarStatus,
    )


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
