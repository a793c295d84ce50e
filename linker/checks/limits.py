"""A cluster's limits for the sidecar: connections of one address, and quotas of the link's principal. Both are easy to
overlook, because each client had its own before: behind a link all of them come from one address, as one principal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from admin.models import Check, CheckResult
from linker.links.configs import broker_configs
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.shown_id import listed
from wire.together import together

_TIMEOUT: Final = 5.0
_ENOUGH: Final = 2000
"""Connections: fewer are worth a line. A moved client has one at each real broker that it asks through the sidecar, and one
at each source broker that it writes to or reads from."""
_LIMITS: Final = ("max.connections.per.ip", "max.connections")
_OVERRIDES: Final = "max.connections.per.ip.overrides"
_BYTES: Final = frozenset({"producer_byte_rate", "consumer_byte_rate"})
_EFFECT: Final = {
    "producer_byte_rate": "all forwarded writes together",
    "consumer_byte_rate": "copies and reads through the link together",
    "request_percentage": "everything that the link asks of a broker",
    "connection_creation_rate": "new connections of the sidecar's address",
}


class Quota(NamedTuple):
    """One of a cluster's client quotas."""

    entity: Mapping[str, str | None]  # type: name; None is the default
    values: Mapping[str, float]


async def check_limits(
    side: str, cluster: Cluster, brokers: Collection[int], user: str | None, client_id: str | None
) -> list[Check]:
    """side: what people call the cluster. user, client_id: of the link; None: not asked for quotas."""
    checks = connection_checks(side, await _limits(cluster, brokers), cluster.hung_up)
    if client_id is not None:
        try:
            quotas = await _quotas(cluster)
        except LinkerError as error:
            checks.append(
                Check(
                    name="quotas",
                    result=CheckResult.OK,
                    detail=f"the {side} does not tell its client quotas ({error}); with the right DescribeConfigs on "
                    "Cluster it would",
                )
            )
        else:
            checks += quota_checks(side, quotas, user, client_id)
    return checks


def connection_checks(
    side: str, limits: Mapping[int, Mapping[str, str]], hung_up: Mapping[str, str] = MappingProxyType({})
) -> list[Check]:
    """limits: configs by broker. hung_up: the addresses that lately ended a connection at once."""
    told: list[str] = []
    for broker, configs in sorted(limits.items()):
        few = [
            f"{name}={configs[name]}"
            for name in _LIMITS
            if configs.get(name, "").isdecimal() and int(configs[name]) < _ENOUGH
        ]
        if few and configs.get(_OVERRIDES):
            few.append(f"{_OVERRIDES}={configs[_OVERRIDES]}")
        if few:
            told.append(f"broker {broker} has {', '.join(few)}")
    if not told and not hung_up:
        return []
    details = []
    if told:
        details.append(
            f"the {side} limits connections: {_told(told)}. Connections of all moved clients come "
            "from the sidecar's address; one above the limit is closed without a word"
        )
    if hung_up:
        details.append(
            f"in the last ten minutes brokers of the {side} closed new connections before they had answered anything, "
            f"{'probably over that limit' if told else 'as above a limit of connections'}: "
            + listed(sorted(hung_up))
        )
    return [
        Check(
            name="connections",
            result=CheckResult.FAIL if told and hung_up else CheckResult.WARN,
            detail=". ".join(details),
            remedy="allow the sidecar's address as many as there are clients, in max.connections.per.ip.overrides",
        )
    ]


def _told(lines: list[str]) -> str:
    return listed(lines, apart="; ", last="; and ")


def quota_checks(side: str, quotas: Iterable[Quota], user: str | None, client_id: str) -> list[Check]:
    """user: the link's principal by name; None: it does not log in."""
    told = [
        f"{_named(quota.entity)}: {key}={_number(key, value)} ({_EFFECT[key]})"
        for quota in quotas
        if _concerns(quota.entity, user or "ANONYMOUS", client_id)
        for key, value in sorted(quota.values.items())
        if key in _EFFECT
    ]
    if not told:
        return []
    return [
        Check(
            name="quotas",
            result=CheckResult.WARN,
            detail=f"quotas of the {side} bind the link: {_told(told)}. Copies, forwarded writes, group "
            "sync and validation share them; a broker that throttles holds its answers back, those to a promote too",
            remedy="give the link's principal a quota of its own that is large enough for the copy and all writes "
            "(kafka-configs.sh --entity-type users --entity-name PRINCIPAL)",
        )
    ]


def _concerns(entity: Mapping[str, str | None], user: str, client_id: str) -> bool:
    own = {"user": user, "client-id": client_id}
    # An address: as which the other side sees us is not known here, so each is told.
    return all(name is None or kind == "ip" or own.get(kind) == name for kind, name in entity.items())


def _named(entity: Mapping[str, str | None]) -> str:
    return " and ".join(f"{kind} {name or '(default)'}" for kind, name in sorted(entity.items()))


def _number(key: str, value: float) -> str:
    return (f"{value:.0f}" if value.is_integer() else f"{value:g}") + (
        " bytes/s for each broker" if key in _BYTES else ""
    )


async def _limits(cluster: Cluster, brokers: Collection[int]) -> dict[int, dict[str, str]]:
    """Of a broker that does not tell: nothing. Rights are other checks' business."""
    wanted = list(brokers)
    found = await together(_of_broker(cluster, broker) for broker in wanted)
    return dict(zip(wanted, found, strict=True))


async def _of_broker(cluster: Cluster, broker: int) -> dict[str, str]:
    try:
        return await broker_configs(cluster, broker, (*_LIMITS, _OVERRIDES), timeout=_TIMEOUT)
    except LinkerError:
        return {}


async def _quotas(cluster: Cluster) -> Sequence[Quota]:
    answer = await cluster.call(
        "describe_client_quotas", {"components": [], "strict": False}, timeout=_TIMEOUT
    )
    if code := int(answer.error_code):
        raise BrokerError(code, message=answer.error_message, api="describe_client_quotas")
    return [
        Quota(
            {one.entity_type: one.entity_name for one in entry.entity},
            {one.key: one.value for one in entry.values},
        )
        for entry in answer.entries or ()
    ]
