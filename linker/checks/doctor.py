"""Checks that need nothing but a client's view of the two clusters: for `linker doctor`, with a sidecar and without one
(doctor_alone.py puts them together for the latter).

Each is a line with what to do. Only questions are asked: nothing is created, changed or remembered. A value that a
broker does not tell is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from admin.models import Check, CheckResult
from controller.decide.groups import GroupRules
from fleet.link_controller import wall_clock_ms
from groups.group_reader import GroupReader
from groups.views import GroupView
from linker.checks import group_kinds as group_kinds
from linker.checks import preflight
from linker.links.configs import broker_config
from linker.links.source_writers import direct_writers, open_transactions
from linker.process.clocks import STAMPED, ClockRange, measure
from linker.promote.producer_states import States, describe_producers
from wire.client.cluster import Cluster
from wire.client.coordinators import CoordinatorFinder, KeyType
from wire.errors import LinkerError, error_name
from wire.frames.error_codes import TRANSACTIONAL_ID_AUTHORIZATION_FAILED
from wire.frames.types import AclRight, TopicPartition
from wire.shown_id import listed, shown_id
from wire.together import together

CLOCK_PATIENCE = 6.0  # seconds: consumers commit every five
_APART_MS = 1000
_PROBE = "linker-doctor"
_MOST = 5
FOLLOWER_BACKOFF = "replica.fetch.backoff.ms"
_SHORT_BACKOFF_MS = 50
_BROKER_TIMEOUT = 5.0  # one that hangs must not keep the others' answers
_EVERY_ID = 1 << 62  # without a link every producer is one of the source's own


def finding_check(finding: preflight.PreflightFinding) -> Check:
    return Check(
        name=finding.name,
        result=CheckResult.FAIL if finding.fatal else CheckResult.WARN,
        detail=finding.detail,
        remedy=finding.remedy,
    )


def check_line(name: str, result: CheckResult, detail: str, remedy: str | None = None) -> Check:
    return Check(name=name, result=result, detail=detail, remedy=remedy)


# --- clocks


def clock_checks(name: str, ranges: Mapping[int, ClockRange], brokers: Collection[int]) -> list[Check]:
    """A line for what is known, one for each broker whose clock is certainly off, one for what cannot be told."""
    checks: list[Check] = []
    off = [one for one in ranges.values() if one.low > _APART_MS or one.high < -_APART_MS]
    for one in off:
        way, least = ("ahead of", one.low) if one.low > 0 else ("behind", -one.high)
        checks.append(
            check_line(
                "clocks",
                CheckResult.WARN,
                f"the clock of broker {one.broker} of the {name} is at least {least} ms {way} this machine's",
                "synchronize them (NTP): timestamps, retention by time and lags in ms are off by as much",
            )
        )
    good = [one for one in ranges.values() if one not in off]
    if good:
        shown = ", ".join(f"broker {one.broker} {one.low:+d} to {one.high:+d} ms" for one in sorted(good))
        checks.append(check_line("clocks", CheckResult.OK, f"{name} against this machine: {shown}"))
    unknown = sorted(set(brokers) - ranges.keys())
    if unknown:
        # Not a fault, and true of every idle cluster: a warning that is always there teaches people to overlook
        # warnings.
        checks.append(
            check_line(
                "clocks",
                CheckResult.OK,
                f"not told by broker{'s' if len(unknown) > 1 else ''} {', '.join(map(str, unknown))} of the {name}, which "
                "stamped nothing meanwhile (idle); `date` on the hosts tells",
            )
        )
    return checks


async def check_clocks(
    name: str, cluster: Cluster, patience: float = CLOCK_PATIENCE, *, but: Collection[int] = ()
) -> list[Check]:
    """`but`: brokers that are none (sidecars) and stamp nothing, ever."""
    try:
        found = await measure(cluster, patience=patience)
        return clock_checks(name, found, [node for node in cluster.nodes if node not in but])
    except LinkerError as error:
        detail = f"not told by the {name} ({error}); `date` on the hosts tells"
        return [check_line("clocks", CheckResult.OK, detail)]


# --- the target's followers


async def check_followers(target: Cluster, brokers: Collection[int]) -> list[Check]:
    """How long a follower of the target waits after it has asked a new leader too early. A promote may hold `acks=all`
    for that long."""

    async def value_of(broker: int) -> str:
        try:
            value = await broker_config(target, broker, FOLLOWER_BACKOFF, timeout=_BROKER_TIMEOUT)
        except LinkerError as error:
            return f"not told ({error})"
        return value or "not told"

    ids = sorted(brokers)
    values: dict[str, list[int]] = {}
    for broker, value in zip(ids, await together(value_of(broker) for broker in ids), strict=True):
        values.setdefault(value, []).append(broker)
    shown = "; ".join(
        f"{value} on broker{'s' if len(those) > 1 else ''} {', '.join(map(str, those))}"
        for value, those in sorted(values.items())
    )
    long = [value for value in values if value.isdigit() and int(value) > _SHORT_BACKOFF_MS]
    hint = (
        f" (a promote may hold acks=all that long, as any change of leaders may; {_SHORT_BACKOFF_MS} makes it short)"
        if long
        else ""
    )
    return [check_line("followers", CheckResult.OK, f"the target's {FOLLOWER_BACKOFF}: {shown}{hint}")]


# --- what proves the copies


def validator_check(missing: str | None, policy: str) -> Check:
    """A missing part of the validator is the worse the more a promote asks of it; with `skip` nothing is."""
    if missing is None:
        return Check(name="validator", result=CheckResult.OK, detail="PySpark and Java are there")
    if policy == "skip":
        return Check(
            name="validator",
            result=CheckResult.OK,
            detail=f"not used, validation.policy is skip: nothing is proved before a promote ({missing})",
        )
    return Check(
        name="validator",
        result=CheckResult.FAIL if policy == "require" else CheckResult.WARN,
        detail=missing,
        remedy="install it, or set validation.policy to skip: nothing is proved then before a promote",
    )


# --- groups


def groups_by_topic(
    views: Mapping[str, GroupView], committed: Mapping[str, Collection[str]], topics: Collection[str]
) -> list[Check]:
    """A line per topic that some group reads, or has committed for; one for those that none does."""
    checks: list[Check] = []
    alone: list[str] = []
    for topic in sorted(topics):
        groups = sorted(
            name
            for name in views.keys() | committed.keys()
            if topic in committed.get(name, ()) or (name in views and topic in views[name].topics)
        )
        if not groups:
            alone.append(topic)
            continue
        shown = [
            f"{name} ({len(views[name].members)} members)" if name in views and views[name].members else name
            for name in groups
        ]
        checks.append(check_line("groups", CheckResult.OK, f"topic {topic}: {listed(shown)}"))
    if alone:
        checks.append(
            check_line(
                "groups",
                CheckResult.OK,
                f"no consumer group that we may see reads {listed(alone)}",
            )
        )
    return checks


async def check_groups(source: Cluster, topics: Collection[str], rules: GroupRules) -> list[Check]:
    """Tell which groups read these topics, which of them are left out, and which could not be looked at."""
    reader = GroupReader(source)
    try:
        listing = await reader.list_groups(timeout=preflight.TIMEOUT)
        left_out = group_kinds.left_out_checks(listing)
        names = group_kinds.held(listing)
        views, failed = await reader.describe(names, timeout=preflight.TIMEOUT)
        offsets = await reader.offsets(names, timeout=preflight.TIMEOUT)
    except LinkerError as error:
        return [check_line("groups", CheckResult.WARN, f"the source's groups cannot be listed: {error}")]
    committed = {name: {tp.topic for tp in found} for name, found in offsets.found.items()}
    checks = groups_by_topic(views, committed, topics)
    checks += group_kinds.excluded_checks(listing, rules, views, committed, topics)
    checks += left_out + await group_kinds.unheld_checks(reader, listing, topics)
    checks += [
        check_line(
            "groups",
            CheckResult.WARN,
            f"broker {node} of the source does not list its groups: {why}",
            "look again when it is up",
        )
        for node, why in sorted(listing.silent.items())
    ]
    checks += [
        check_line(
            "source rights",
            CheckResult.WARN,
            f"group {shown_id(name)} at the source cannot be looked at, and will not be held: {why}",
            f"kafka-acls.sh --add --allow-principal 'User:<link>' --operation Describe --group {name}",
        )
        for name, why in sorted({**failed, **offsets.failed}.items())
    ]
    return checks


# --- rights


async def check_source_rights(source: Cluster) -> list[Check]:
    """Rights beyond topics: on the cluster, which shows all groups and transactions, and on transactional ids."""
    checks: list[Check] = []
    operations = await preflight.cluster_operations(source)
    acl = "kafka-acls.sh --add --allow-principal 'User:<link>'"
    if not preflight.allowed(operations, AclRight.DESCRIBE):
        checks.append(
            check_line(
                "source rights",
                CheckResult.WARN,
                "the link's principal lacks DESCRIBE on Cluster at the source: only groups that it may describe one by "
                "one are seen, and moved",
                f"{acl} --operation Describe --cluster",
            )
        )
    await source.refresh(STAMPED[1:], timeout=preflight.TIMEOUT)
    transactions = source.topics.get(STAMPED[1])
    # Without that topic there are no groups, and asking for a coordinator would create the topic.
    if transactions is not None and not transactions.error and transactions.partitions:
        found = await CoordinatorFinder(source).locate(KeyType.TRANSACTION, [_PROBE], preflight.TIMEOUT)
        code = found[_PROBE].code
        if code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            checks.append(
                check_line(
                    "source rights",
                    CheckResult.WARN,
                    f"the link's principal lacks DESCRIBE on TransactionalId {_PROBE!r} at the source, which nobody uses: "
                    "open transactions of ids that it may not describe have no name, and are not aborted",
                    f"{acl} --operation Describe --transactional-id '*'",
                )
            )
        elif code:
            checks.append(
                check_line(
                    "source rights",
                    CheckResult.WARN,
                    f"whether TransactionalIds may be described at the source is not known: {error_name(code)}",
                )
            )
    return checks or [
        check_line(
            "source rights", CheckResult.OK, "DESCRIBE on Cluster and, as tried with one, on TransactionalIds"
        )
    ]


# --- producers, where there is no link yet


def producers_by_topic(states: States, now_ms: int) -> list[Check]:
    """The clients that would have to be moved: producers with an id that wrote lately, and open transactions."""
    topics: dict[str, set[int]] = {}
    for tp, found in direct_writers(states, _EVERY_ID, now_ms).items():
        topics.setdefault(tp.topic, set()).update(one.producer_id for one in found)
    checks = [
        check_line(
            "producers",
            CheckResult.OK,
            f"topic {topic}: {len(ids)} producer{'s' if len(ids) != 1 else ''} with an id wrote in the last quarter of an "
            "hour "
            f"({', '.join(map(str, sorted(ids)[:_MOST]))}{', ...' if len(ids) > _MOST else ''})",
        )
        for topic, ids in sorted(topics.items())
    ]
    checks += [
        check_line(
            "transactions",
            CheckResult.WARN,
            f"{tp}: producer {found[0].producer_id} has one open from offset {found[0].txn_start_offset}",
            "a promote waits for its end, or aborts it with --abort-open-transactions",
        )
        for tp, found in sorted(open_transactions(states).items())
    ]
    nobody = (
        "no producer with an id wrote to these topics lately; those without one are not listed by any broker"
    )
    return checks or [check_line("producers", CheckResult.OK, nobody)]


async def check_producers(source: Cluster, tps: Collection[TopicPartition]) -> list[Check]:
    leaders = {tp: node.id for tp in tps if (node := source.leader(tp)) is not None}
    try:
        states = await describe_producers(source, leaders, timeout=preflight.TIMEOUT)
    except LinkerError as error:
        remedy = "grant READ on the topics to the link's principal; Kafka 2.8 or later is needed"
        detail = f"the source's producers cannot be listed: {error}"
        return [check_line("producers", CheckResult.WARN, detail, remedy)]
    return producers_by_topic(states, wall_clock_ms())
