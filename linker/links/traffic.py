"""Bytes and records that a link fetched, served and forwarded, here and in the fleet."""

from __future__ import annotations

from admin.models import Traffic
from fleet.fleet_controller import FleetController
from fleet.messages import LinkTraffic
from linker.links.runtime import LinkRuntime


def own_traffic(runtime: LinkRuntime) -> LinkTraffic:
    """Since this process began."""
    copies = runtime.fetcher.partitions.values()
    stats = runtime.router.stats.links[runtime.name]
    return LinkTraffic(
        link=runtime.name,
        fetched_bytes=runtime.fetcher.gone_bytes_fetched + sum(copy.bytes_fetched for copy in copies),
        served_bytes=runtime.fetcher.gone_bytes_served + sum(copy.bytes_served for copy in copies),
        forwarded_produces=stats.produces,
        forwarded_bytes=stats.bytes,
        forward_errors=sum(stats.errors.values()),
    )


def traffic(
    runtime: LinkRuntime, fleet_controller: FleetController | None = None, back: LinkRuntime | None = None
) -> Traffic:
    """The traffic of this process and, on the link controller, of all connected sidecars as they reported last. Numbers
    of a sidecar that is gone are gone with it. `back`: the link that runs the other way, whose traffic is added."""
    both = [runtime] if back is None else [runtime, back]
    names = {one.name for one in both}
    parts = [own_traffic(one) for one in both]
    for member in () if fleet_controller is None else fleet_controller.members.values():
        if not member.local and member.said is not None:
            parts += [part for part in member.said.links if part.link in names]
    return Traffic(
        fetched_bytes=sum(part.fetched_bytes for part in parts),
        served_bytes=sum(part.served_bytes for part in parts),
        forwarded_produces=sum(part.forwarded_produces for part in parts),
        forwarded_bytes=sum(part.forwarded_bytes for part in parts),
        forward_errors=sum(part.forward_errors for part in parts),
    )
