"""The sidecars as brokers of a link's source: refused before they join or leave, shown, and checked by doctor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from admin.models import Check, CheckResult, LinkOptions, SourceMembership
from admin.service import IllegalState, PreflightFailed
from controller.decide.reverse import reverse_of
from controller.state import Link
from fleet.messages import SourceMember
from linker.checks import preflight
from linker.checks.doctor import check_line
from linker.checks.source_membership import NAME, refused_by_options
from linker.membership import StillHosting
from linker.membership.hosting import hosted_partitions
from linker.running import Running
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.shown_id import listed

_LEFT_WITHIN = 20.0
_LOOK = 0.25


async def refuse_join(sidecar: Running, link: Link, source: Cluster, topics: Collection[str]) -> None:
    """PreflightFailed if this sidecar could not join the source now. The other sidecars report their own obstacles."""
    try:
        preflight.refuse(await sidecar.joined.findings(link, source, topics))
    except preflight.PreflightError as error:
        raise PreflightFailed(f"link {link.name} cannot join its source: {error}") from error


def refuse_options(name: str, options: LinkOptions) -> None:
    """IllegalState if these options do not go together."""
    why = refused_by_options(options.model_dump()) if options.join_source else None
    if why is not None:
        raise IllegalState(f"link {name}: {why}, or leave the source first (--no-join-source)")


def refuse_leaving(sidecar: Running, link: str) -> None:
    """IllegalState while a partition of the source names one of our link brokers there, or is about to."""
    image = sidecar.controller.image
    reverse = reverse_of(image, link)
    if reverse is not None and (held := sorted(one.topic for one in image.link_mirrors(reverse.name))):
        raise IllegalState(
            f"the source of link {link} is not left: {listed(held)} are switched, or on the way: switch them back first"
        )
    if synced := sorted(one.topic for one in image.link_mirrors(link) if one.sync):
        raise IllegalState(
            f"the source of link {link} is not left: {listed(synced)} are synced with it; end that: linker mirror sync "
            f"--link {link} --off --all"
        )
    broker = sidecar.joined.get(link)
    if broker is None:
        return
    for one in sorted(broker.link_brokers()):
        leads, hosts = hosted_partitions(broker.membership.image, one)
        if leads or hosts:
            raise IllegalState(
                f"the source of link {link} is not left: {StillHosting(one, leads, hosts)} (at the source: give these "
                "partitions back to its real brokers)"
            )


async def wait_left(sidecar: Running, source: Cluster, ids: Collection[int], link: str) -> None:
    """Until the source does not list these brokers any more: a link that is gone cannot lead there again."""
    deadline = time.monotonic() + _LEFT_WITHIN
    while True:
        try:
            answer = await source.call("describe_cluster", {}, timeout=_LEFT_WITHIN)
        except LinkerError:
            return  # a source that is dead holds nobody up
        left = {one.broker_id for one in answer.brokers} & set(ids)
        if not left and link not in sidecar.joined.sources:
            return
        if time.monotonic() > deadline:
            shown = ", ".join(map(str, sorted(left or ids)))
            raise IllegalState(
                f"link {link} is not deleted yet, broker {shown} is still registered at its source: try again; if that "
                f"sidecar is gone for good: kafka-cluster.sh unregister --id {shown} there; --force deletes the link anyway"
            )
        await asyncio.sleep(_LOOK)


def members_of(sidecar: Running, link: str) -> list[SourceMembership]:
    """Of all sidecars, as each said last."""
    told: dict[int, list[SourceMember]] = {sidecar.config.sidecar.broker_id: sidecar.joined.told()}
    controller = sidecar.fleet.fleet_controller
    for member in () if controller is None else controller.members.values():
        if not member.local and member.said is not None:
            told[member.hello.broker_id] = member.said.joined
    return [
        SourceMembership(
            sidecar=broker_id,
            broker_id=one.broker_id,
            state=one.state,
            reason=one.reason,
            cordoned=one.cordoned,
        )
        for broker_id, found in sorted(told.items())
        for one in found
        if one.link == link
    ]


async def join_checks(sidecar: Running, link: Link, source: Cluster, topics: Collection[str]) -> list[Check]:
    """Whether the source can be joined and what is missing; and where it is joined, by whom it is not."""
    try:
        findings = await sidecar.joined.findings(link, source, topics)
    except LinkerError as error:
        findings = [preflight.PreflightFinding(NAME, True, f"not told: {error}")]
    if not link.options.get("join_source"):
        if not findings:
            detail = f"not joined; it could be: linker link update {link.name} --join-source"
            return [check_line(NAME, CheckResult.OK, detail)]
        # No fault: a link works without.
        return [
            check_line(NAME, CheckResult.OK, f"not joined, and could not be: {one.detail}", one.remedy)
            for one in findings
        ]
    members = members_of(sidecar, link.name)
    checks = [check_line(NAME, CheckResult.FAIL, one.detail, one.remedy) for one in findings]
    checks += [
        check_line(
            NAME,
            CheckResult.FAIL,
            f"sidecar {one.sidecar} is {one.state} at the source: {one.reason or 'it was fenced'}",
        )
        for one in members
        if one.state != "JOINED"
    ]
    joined = [one for one in members if one.state == "JOINED"]
    checks += [
        check_line(
            NAME,
            CheckResult.OK,
            f"the source cannot cordon broker {one.broker_id} (Kafka 4.3 and its metadata.version do): a new topic that it "
            "places there is moved to real brokers within seconds, and takes no writes until then",
        )
        for one in joined
        if not one.cordoned
    ]
    if joined:
        shown = ", ".join(f"sidecar {one.sidecar} as broker {one.broker_id}" for one in joined)
        checks.append(check_line(NAME, CheckResult.OK, f"joined by {shown}"))
    return checks
