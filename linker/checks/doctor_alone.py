"""`linker doctor` before there is a sidecar: all checks that two clusters' clients can make, put together.

Lives here: what is asked in which order, and what follows when a cluster cannot be reached. The checks themselves are those
of doctor.py and preflight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from admin.models import Check, CheckResult, DoctorReport
from linker.checks import preflight
from linker.checks.doctor import (
    check_clocks,
    check_followers,
    check_groups,
    check_line,
    check_producers,
    check_source_rights,
    finding_check,
    validator_check,
)
from linker.checks.message_format import formats_or_not_told
from linker.checks.replication_factor import few_replicas, target_default
from linker.checks.topic_names import collisions, is_internal
from linker.config.cluster_addresses import OF_THE_TARGET, check_addresses
from linker.config.model import Config
from linker.links.group_options import group_settings
from linker.validation.needs import missing_parts
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.secrets import hiding_values
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


async def examine(config: Config, properties: Mapping[str, str], topics: Sequence[str]) -> DoctorReport:
    """The findings for a sidecar with this configuration, and a link with these client properties. No topics: all that
    the link's principal may see, internal ones left out."""
    resolved = config.link_secrets.resolve(properties)
    with hiding_values(properties):
        source = Cluster(
            "source",
            parse_bootstrap_servers(resolved["bootstrap.servers"]),
            ClientSecurity.from_properties(resolved),
            resolved.get("client.id", "kafka-linker-doctor"),
        )
    of_target = config.target.client_properties()
    with config.target.hiding_values():
        target = Cluster(
            "target",
            config.target.bootstrap_servers(),
            ClientSecurity.from_properties(of_target),
            of_target.get("client.id", "kafka-linker-doctor"),
        )
    # Of this machine, with this environment.
    checks = [validator_check(missing_parts(), config.validation.policy)]
    try:
        reached = [
            await _reached(name, one, checks) for name, one in (("source", source), ("target", target))
        ]
        if reached[1]:
            await _part("target", checks, _target_checks(target))
        if reached[0]:
            await _part("source", checks, _source_checks(source, target if reached[1] else None, topics))
    finally:
        await source.close()
        await target.close()
    return DoctorReport(link="none yet", checks=checks)


async def _reached(name: str, cluster: Cluster, checks: list[Check]) -> bool:
    try:
        await cluster.connect(timeout=preflight.TIMEOUT)
    except LinkerError as error:
        checks.append(check_line(name, CheckResult.FAIL, str(error), "check address, listener and security"))
        return False
    checks.append(check_line(name, CheckResult.OK, f"cluster {cluster.cluster_id} answers"))
    return True


async def _part(name: str, checks: list[Check], work: Awaitable[list[Check]]) -> None:
    try:
        checks += await work
    except LinkerError as error:
        checks.append(check_line(name, CheckResult.FAIL, str(error)))


async def _names(target: Cluster) -> list[str]:
    await target.refresh(None, timeout=preflight.TIMEOUT)
    return list(target.topics)


async def _target_checks(target: Cluster) -> list[Check]:
    found = await check_addresses("target", target, OF_THE_TARGET)
    found += await preflight.check_target_rights(_OnlyCluster(target))
    checks = [finding_check(one) for one in found]
    checks += await check_followers(target, list(target.nodes))
    return checks + await check_clocks("target", target)


async def _source_checks(source: Cluster, target: Cluster | None, topics: Sequence[str]) -> list[Check]:
    await source.refresh(list(topics) or None, timeout=preflight.TIMEOUT)
    names = list(topics) or sorted(name for name in source.topics if not is_internal(name))
    findings: list[preflight.PreflightFinding] = []
    if target is not None:
        findings += await preflight.check_source(source, _OnlyCluster(target))
    findings += await check_addresses("source", source, "correct bootstrap.servers of the link's properties")
    found, missing, more = await preflight.read_source_topics(source, names)
    findings += more
    findings += [
        preflight.PreflightFinding("topics", True, f"topic {name} is not at the source") for name in missing
    ]
    findings += await formats_or_not_told(
        source, {name: one.configs.effective for name, one in found.items()}
    )
    findings += [
        preflight.PreflightFinding(
            "names", True, f"topics {name} and {other} differ in '.' and '_' only", "mirror one of them"
        )
        for name, other in collisions(names, () if target is None else await _names(target))
    ]
    if target is not None and found and target.nodes:
        # As a mirror is made unless -r says otherwise.
        factors = {name: min(one.replication_factor, len(target.nodes)) for name, one in found.items()}
        found = await preflight.plan_topics(_OnlyCluster(target), found, list(target.nodes), {})
        findings += preflight.check_configs(found, factors) + preflight.config_differences(found)
        findings += few_replicas(factors, await target_default(target, list(target.nodes)), asked=False)
    checks = [finding_check(one) for one in findings]
    if not findings:
        checks.append(
            check_line(
                "versions, rights, configs",
                CheckResult.OK,
                f"nothing to object to for {len(names)} topic{'s' if len(names) != 1 else ''}",
            )
        )
    tps = [
        TopicPartition(name, index)
        for name in names
        if (known := source.topics.get(name)) is not None
        for index in known.partitions
    ]
    checks += await check_source_rights(source)
    checks += await check_producers(source, tps)
    checks += await check_groups(source, names, group_settings({}).rules)
    return checks + await check_clocks("source", source)


class _OnlyCluster:
    """The part of a target that preflight asks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
